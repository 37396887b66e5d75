#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

#include "config.h"
#include "shared_card.h"

namespace simcuda {
namespace {

constexpr size_t kPage = 4096;  // bytes; also CUDA's and the kernels' alignment

size_t round_up(size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

struct Count {
  uint64_t now = 0;
  uint64_t peak = 0;

  void add(uint64_t bytes) {
    now += bytes;
    peak = std::max(peak, now);
  }
};

struct Freed {
  void* address;
  size_t bytes;
};

struct Memory {
  std::mutex mutex;
  std::map<uintptr_t, Range> ranges;  // by base; they do not overlap
  std::array<Count, 16> devices;
  Count page_locked;
  // Freed device memory stays mapped for a while, filled with the pattern, so
  // that a late access sees wrong numbers instead of ending the process.
  static constexpr uint64_t kKept = uint64_t{256} << 20;
  std::deque<Freed> freed;
  uint64_t freed_bytes = 0;

  std::map<uintptr_t, Range>::iterator find(uintptr_t address) {
    auto after = ranges.upper_bound(address);
    if (after == ranges.begin()) {
      return ranges.end();
    }
    --after;
    const Range& range = after->second;
    return address < range.base + range.bytes ? after : ranges.end();
  }

  bool erase(const void* address, Place place) {
    const auto found = ranges.find(number(address));
    if (found == ranges.end() || found->second.place != place) {
      return false;
    }
    ranges.erase(found);
    return true;
  }

  // False when the device has too little left.
  bool take(int device, uint64_t bytes) {
    Count& count = devices[static_cast<size_t>(device)];
    const uint64_t capacity = config().capacity;
    if (bytes > capacity || count.now > capacity - bytes ||
        !note_on_card(device, count.now + bytes)) {
      return false;
    }
    count.add(bytes);
    return true;
  }

  void give_back(int device, uint64_t bytes) {
    Count& count = devices[static_cast<size_t>(device)];
    count.now -= bytes;
    note_on_card(device, count.now);
  }

  // Has freed pages below a range that was just mapped, where there are some:
  // the system takes long to make new ones.
  void reuse_freed(void* address, size_t bytes) {
    const auto found =
        std::find_if(freed.begin(), freed.end(),
                     [bytes](const Freed& one) { return one.bytes == bytes; });
    if (freed_bytes < kKept || found == freed.end() ||
        mremap(found->address, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
               address) == MAP_FAILED) {
      return;
    }
    freed_bytes -= bytes;
    freed.erase(found);
  }

  void forget_oldest() {
    munmap(freed.front().address, freed.front().bytes);
    freed_bytes -= freed.front().bytes;
    freed.pop_front();
  }
};

Memory& memory() {
  static Memory* m = new Memory;
  return *m;
}

// Where to map the next range, if that is free: addresses rise in the order of
// allocation, since whoever breaks ties by address must do so in each run
// alike. Device memory apart, for threads in the background page-lock memory.
void* next_address(size_t bytes, Place place) {
  static std::atomic<uintptr_t> device{uintptr_t{1} << 45};
  static std::atomic<uintptr_t> host{uintptr_t{3} << 44};
  constexpr size_t kApart = size_t{2} << 20;
  return reinterpret_cast<void*>(
      (place == Place::Device ? device : host)
          .fetch_add((bytes + kApart) / kApart * kApart));
}

// In timed mode memory is address space. What is on the device is never
// touched; what is on the host may be, reads as zero, and takes memory only
// where the program writes to it.
void* map_pages(size_t bytes, Place place) {
  const int access =
      timed() && place == Place::Device ? PROT_NONE : PROT_READ | PROT_WRITE;
  const int reserve = timed() ? MAP_NORESERVE : 0;
  void* address = mmap(next_address(bytes, place), bytes, access,
                       MAP_PRIVATE | MAP_ANONYMOUS | reserve, -1, 0);
  if (address == MAP_FAILED) {
    return nullptr;
  }
  if (!timed()) {  // all of it is touched: an advice, for fewer page faults
    madvise(address, bytes, MADV_HUGEPAGE);
  }
  return address;
}

}  // namespace

Range find_range(const void* address, size_t bytes) {
  Memory& m = memory();
  std::lock_guard<std::mutex> lock(m.mutex);
  auto found = m.find(number(address));
  if (found == m.ranges.end()) {
    return Range{};
  }
  Range range = found->second;
  const uintptr_t end = number(address) + bytes;
  while (range.mapped && range.base + range.bytes < end) {
    const auto next = m.ranges.find(range.base + range.bytes);
    if (next == m.ranges.end() || !next->second.mapped ||
        next->second.device != range.device) {
      break;
    }
    range.bytes += next->second.bytes;
  }
  return range;
}

bool take_memory(int device, size_t bytes) {
  Memory& m = memory();
  std::lock_guard<std::mutex> lock(m.mutex);
  return m.take(device, bytes);
}

void give_back_memory(int device, size_t bytes) {
  Memory& m = memory();
  std::lock_guard<std::mutex> lock(m.mutex);
  m.give_back(device, bytes);
}

void add_mapped(int device, void* address, size_t bytes) {
  Memory& m = memory();
  std::lock_guard<std::mutex> lock(m.mutex);
  m.ranges[number(address)] =
      Range{Place::Device, device, number(address), bytes, true};
}

void remove_mapped(void* address) {
  Memory& m = memory();
  std::lock_guard<std::mutex> lock(m.mutex);
  m.ranges.erase(number(address));
}

void* allocate_device(int device, size_t bytes) {
  const size_t rounded = round_up(bytes);
  Memory& m = memory();
  if (!take_memory(device, rounded)) {
    return nullptr;
  }
  void* address = map_pages(rounded, Place::Device);
  if (address == nullptr) {
    give_back_memory(device, rounded);
    return nullptr;
  }
  std::lock_guard<std::mutex> lock(m.mutex);
  if (config().poison > 0) {
    m.reuse_freed(address, rounded);
    fill_pattern(address, rounded, kFresh);
  }
  m.ranges[number(address)] =
      Range{Place::Device, device, number(address), rounded, false};
  return address;
}

bool free_device(void* address) {
  Memory& m = memory();
  std::lock_guard<std::mutex> lock(m.mutex);
  const auto found = m.ranges.find(number(address));
  if (found == m.ranges.end() || found->second.place != Place::Device ||
      found->second.mapped) {
    return false;
  }
  const Range range = found->second;
  m.ranges.erase(found);
  m.give_back(range.device, range.bytes);
  if (config().poison == 0) {
    munmap(address, range.bytes);
    return true;
  }
  fill_pattern(address, range.bytes, kFreed);
  m.freed.push_back({address, range.bytes});
  m.freed_bytes += range.bytes;
  while (m.freed_bytes > config().capacity) {
    m.forget_oldest();
  }
  return true;
}

int owner(const void* address) {
  Memory& m = memory();
  std::lock_guard<std::mutex> lock(m.mutex);
  const auto found = m.ranges.find(number(address));
  return found == m.ranges.end() ? -1 : found->second.device;
}

void* allocate_page_locked(size_t bytes) {
  const size_t rounded = round_up(std::max<size_t>(bytes, 1));
  void* address = map_pages(rounded, Place::PageLocked);
  if (address == nullptr) {
    return nullptr;
  }
  if (config().poison > 0) {  // takes time: copies go on meanwhile
    fill_pattern(address, rounded, kFresh);
  }
  Memory& m = memory();
  std::lock_guard<std::mutex> lock(m.mutex);
  m.page_locked.add(rounded);
  m.ranges[number(address)] =
      Range{Place::PageLocked, -1, number(address), rounded, false};
  return address;
}

bool free_page_locked(void* address) {
  const Range range = find_range(address);
  if (range.base != number(address) || !unregister_page_locked(address)) {
    return false;
  }
  munmap(address, range.bytes);
  return true;
}

void set_ready(const void* address, int thread, int64_t time) {
  Memory& m = memory();
  std::lock_guard<std::mutex> lock(m.mutex);
  const auto found = m.ranges.find(number(address));
  if (found == m.ranges.end()) {
    return;
  }
  found->second.thread = thread;
  for (auto& [base, range] : m.ranges) {
    if (range.thread == thread) {
      range.ready = time;
    }
  }
}

bool register_page_locked(void* address, size_t bytes) {
  Memory& m = memory();
  std::lock_guard<std::mutex> lock(m.mutex);
  const uintptr_t base = number(address);
  const auto after = m.ranges.lower_bound(base);
  const bool overlaps =
      m.find(base) != m.ranges.end() ||
      (after != m.ranges.end() && after->first < base + bytes);
  if (bytes == 0 || overlaps) {
    return false;
  }
  m.page_locked.add(bytes);
  m.ranges[base] = Range{Place::PageLocked, -1, base, bytes, false};
  return true;
}

bool unregister_page_locked(void* address) {
  Memory& m = memory();
  std::lock_guard<std::mutex> lock(m.mutex);
  const auto found = m.ranges.find(number(address));
  const size_t bytes = found == m.ranges.end() ? 0 : found->second.bytes;
  if (!m.erase(address, Place::PageLocked)) {
    return false;
  }
  m.page_locked.now -= bytes;
  return true;
}

Usage device_usage(int device) {
  Memory& m = memory();
  std::lock_guard<std::mutex> lock(m.mutex);
  const Count& count = m.devices[static_cast<size_t>(device)];
  return {count.now, count.peak};
}

Usage page_locked_usage() {
  Memory& m = memory();
  std::lock_guard<std::mutex> lock(m.mutex);
  return {m.page_locked.now, m.page_locked.peak};
}

void reset_peaks() {
  Memory& m = memory();
  std::lock_guard<std::mutex> lock(m.mutex);
  for (Count& count : m.devices) {
    count.peak = count.now;
  }
  m.page_locked.peak = m.page_locked.now;
}

void fill_pattern(void* address, size_t bytes, uint16_t pattern) {
  // memcpy is several times as fast as the loop.
  constexpr size_t kBlock = 64 << 10;
  const size_t filled = std::min(bytes, kBlock) & ~size_t{1};
  std::fill_n(static_cast<uint16_t*>(address), filled / sizeof(pattern),
              pattern);
  auto* begin = static_cast<char*>(address);
  for (size_t done = filled; done < bytes; done += kBlock) {
    std::memcpy(begin + done, begin, std::min(kBlock, bytes - done));
  }
}

}  // namespace simcuda
