#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace at::cuda::lms {

// What is timed on the device.
enum class Activity : size_t {
  kPageIn, // a copy to the device
  kPageOut, // a copy to the host
  kMove, // a copy within the device
  kMake, // an operator that runs again
  kReadDisk, // from disk to the host's memory
  kWriteDisk, // to disk
  kWaitForDemand, // a stream stands still: for bytes fetched when needed,
  kWaitForAhead, // for bytes that were fetched ahead, but late,
  kWaitForMemory, // for memory that is being copied from, or moved bytes
  kCount
};

struct TimeSpent {
  int64_t times = 0; // that took at least Times::kNoWait
  int64_t none = 0; // that took less
  double us = 0; // of both
};
using TimesSpent = std::array<TimeSpent, static_cast<size_t>(Activity::kCount)>;

// A level that moves both ways, as in the caching allocator's statistics.
struct Level {
  int64_t current = 0;
  int64_t peak = 0;
  int64_t allocated = 0; // sum of increases
  int64_t freed = 0; // sum of decreases

  void add(int64_t amount) {
    current += amount;
    peak = std::max(peak, current);
    allocated += amount;
  }
  void remove(int64_t amount) {
    current -= amount;
    freed += amount;
  }
};

// Index of a Level by the pool its block comes from.
enum Pool : size_t { kAll, kSmallPool, kLargePool, kPools };

// How an allocation was served, cheapest first.
enum class AllocSource : size_t {
  kFreeList,
  kCudaMalloc,
  kReclaimOne, // one eviction made room
  kReclaimFragments, // several neighbours, or whole segments, did
  kReclaimAll, // everything not pinned had to be evicted
  kCudaMallocRetry, // served after an out-of-memory error
  kCount
};

struct Traffic {
  int64_t copies = 0;
  int64_t bytes = 0;

  void add(size_t copied) {
    copies += 1;
    bytes += static_cast<int64_t>(copied);
  }
};

struct DeviceStats {
  std::array<Level, kPools> pinned; // storages not reclaimable now
  std::array<Level, kPools> pinned_bytes;
  std::array<Level, kPools> managed; // storages LMS manages
  std::array<Level, kPools> managed_bytes;
  Level paged_out_bytes; // bytes that are on the host or on disk only
  Level on_disk_bytes; // bytes that the disk has, whoever else has them
  int64_t reclaimed = 0; // storages paged out, ever
  int64_t reclaimed_bytes = 0;
  int64_t dropped = 0; // the part of them that the host had already
  int64_t dropped_bytes = 0;
  Traffic paged_out; // device to host
  Traffic paged_in; // host to device
  Traffic moved; // within the device
  Traffic written_to_disk; // from the host's memory
  Traffic read_from_disk; // to the host's memory
  Traffic made; // again, by running operators
  Traffic fetched_ahead; // the part of paged_in that began before it was needed
  // Storages that were evicted or died without a use.
  int64_t fetched_in_vain = 0;
  int64_t overruled = 0; // what went though it should stay, see Note [Hints]
  TimesSpent times{}; // of what has ended by now
  size_t free_bytes = 0; // in segments that the caching allocator holds
  size_t largest_free_bytes = 0; // the largest range of them
  std::array<int64_t, static_cast<size_t>(AllocSource::kCount)>
      alloc_distribution{};
};

} // namespace at::cuda::lms
