#pragma once

#include <ATen/cuda/detail/LMSCoreResidence.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace at::cuda::lms {

// What of the device's memory is to be made free.
enum class Scope {
  kWindow, // one range that serves the request
  kSegments, // whole segments, of its size together
  kAll,
  kForOthers, // whole segments up to its size together, for other processes
};

struct Reclaimed {
  size_t count = 0; // pages, and memory that was draining
  size_t bytes = 0; // that are free now
};

// Pages to evict, where host memory may have to be waited for.
struct Eviction {
  // Only who holds no mutex may wait for host memory.
  explicit Eviction(bool may_wait) : wait(may_wait) {}
  void add(const std::vector<Page*>& victims);

  std::vector<std::pair<Page*, uint64_t>> pages; // still to go; their ids
  HostMemory::Wait wait; // for the first of them
  bool keeps_memory = false; // it drains, until somebody needs it
  size_t room = 0; // bytes that somebody needs now
  bool has_failed = false; // for some of them
  Reclaimed gone;
};

// How device memory gets free: which pages go, and in what order.
class Reclaimer {
 public:
  Reclaimer(Books& books, Residence& residence)
      : books_(books), residence_(residence) {}

  // Evicts what the policy chooses for the request, or all. Never throws, since
  // it is called from inside the allocator: a page whose copy fails stays
  // resident, and the request ends in an out-of-memory error that gives the
  // reason. Without the mutex.
  Reclaimed reclaim(Request wanted, Scope scope, bool may_wait) noexcept;

  // The pages are dropped when their memory is needed. Adds those to `eviction`
  // that cannot be, or need not. With the mutex.
  void let_drop(const std::vector<Page*>& pages, Eviction& eviction);
  // Evicts the pages, in order, until a wait is needed. With the mutex.
  void evict(Eviction& eviction, Freed& freed);
  // Waits and goes on until all are evicted that can be: the same ones as
  // without a wait, so that it does not matter how long page-locking takes.
  // Without the mutex.
  void finish(Eviction& eviction);

 private:
  std::vector<Page*> victims(const Request& request, Scope scope);
  std::vector<Page*> all_evictable();

  Books& books_;
  Residence& residence_;
};

} // namespace at::cuda::lms
