// Device memory (host memory of a limited amount) and page-locked host memory.
// Every range is known by address, so that copies can tell what they touch.
#pragma once

#include <driver_types.h>

#include <cstddef>
#include <cstdint>

namespace simcuda {

enum class Place { Pageable, PageLocked, Device };

inline uintptr_t number(const void* address) {
  return reinterpret_cast<uintptr_t>(address);
}

// Where an address lies; base and bytes are of its whole range.
struct Range {
  Place place = Place::Pageable;
  int device = -1;  // owner, -1 for host memory
  uintptr_t base = 0;
  size_t bytes = 0;     // 0: unknown, for pageable memory
  bool mapped = false;  // see virtual_memory.h and ipc.h
  int64_t ready = 0;    // virtual time, ns, see set_ready
  int thread = 0;       // that has page-locked it in the background

  bool holds(const void* address, size_t n) const {
    return place == Place::Pageable || number(address) + n <= base + bytes;
  }
};

// Mapped ranges that follow each other count as one, as far as `bytes`.
Range find_range(const void* address, size_t bytes = 1);

// nullptr when the device has too little memory left.
void* allocate_device(int device, size_t bytes);
// False when it is not the start of a live allocation. The caller has waited
// for the device's work.
bool free_device(void* address);
// The device that owns this allocation, or -1.
int owner(const void* address);

// For virtual_memory.h: memory without an address.
bool take_memory(int device, size_t bytes);
void give_back_memory(int device, size_t bytes);
// For it and ipc.h: where a device's memory is mapped.
void add_mapped(int device, void* address, size_t bytes);
void remove_mapped(void* address);

void* allocate_page_locked(size_t bytes);
bool free_page_locked(void* address);
// In timed mode: that thread in the background has page-locked the memory by
// `time`, in virtual nanoseconds. Who uses it has waited until then, and so has
// who uses what it has page-locked before: it may all be one thing.
void set_ready(const void* address, int thread, int64_t time);
bool register_page_locked(void* address, size_t bytes);
bool unregister_page_locked(void* address);

struct Usage {
  uint64_t bytes;
  uint64_t peak;
};
Usage device_usage(int device);
Usage page_locked_usage();
void reset_peaks();

// Patterns that are not a number in every floating point type and far out of
// range as an index: freshly allocated, and freed.
constexpr uint16_t kFresh = 0x7ffd;
constexpr uint16_t kFreed = 0x7ffb;
void fill_pattern(void* address, size_t bytes, uint16_t pattern);

}  // namespace simcuda
