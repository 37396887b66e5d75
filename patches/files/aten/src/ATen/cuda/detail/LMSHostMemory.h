#pragma once

#include <ATen/cuda/detail/LMSEvent.h>

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace at::cuda::lms {

// Host memory for paged-out storages, one pool for all devices.
//
// Memory comes in slabs, page-locked where the driver grants it and pageable
// otherwise, and is sub-allocated exactly (rounded to kAlignment), so a model
// paged out takes its own size and not the next power of two. What the slabs
// take in total never exceeds the limit.
//
// Thread safe. The pool's mutex is the innermost lock of LMS.
class HostMemory {
 public:
  // Sub-allocation granularity, bytes; a copy engine's preferred alignment.
  static constexpr size_t kAlignment = 512;

  struct Stats {
    size_t limit = 0; // bytes the slabs may take
    size_t reserved = 0; // bytes the slabs take now
    size_t page_locked = 0; // the part of `reserved` that is page-locked
    size_t used = 0; // bytes handed out now
    size_t peak_used = 0;
  };

  static HostMemory& get();

  // Null when the limit or the host's memory is spent; with `may_wait` only
  // when waiting for copies out of freed memory does not help either.
  void* allocate(size_t bytes, bool may_wait);

  // Takes the memory back once `ready` has happened on the device: the copy
  // that reads it is then done. A null event means now.
  void free(void* ptr, Event ready);

  // Bytes; 0 restores the default, 80 % of the memory available on the host.
  void set_limit(size_t bytes);
  Stats stats();
  void reset_peak();

  // Gives slabs that hold nothing back to the system.
  void trim();

 private:
  struct Slab {
    std::unique_ptr<char, void (*)(char*)> memory;
    size_t size;
    bool page_locked;
  };
  using FreeBySize = std::set<std::pair<size_t, char*>>;

  void* take(size_t bytes);
  bool grow(size_t bytes);
  void give_back(char* ptr, size_t bytes);
  bool collect(bool wait);
  void insert_free(char* ptr, size_t bytes);
  size_t limit_locked();

  std::mutex mutex_;
  std::map<char*, Slab> slabs_; // by address
  std::map<char*, size_t> free_; // by address, neighbours merged
  FreeBySize free_by_size_;
  std::map<char*, size_t> used_; // by address
  std::deque<std::pair<char*, Event>> leaving_; // freed, copy still running
  Stats stats_;
};

} // namespace at::cuda::lms
