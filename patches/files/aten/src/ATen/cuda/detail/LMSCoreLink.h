#pragma once

#include <ATen/cuda/detail/LMSCoreCycle.h>
#include <ATen/cuda/detail/LMSCoreRangeMaximum.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace at::cuda::lms {

// Note [Copy or make again]
// ~~~~~~~~~~~~~~~~~~~~~~~~~
// What leaves the device may be copied, or dropped and made again. A copy costs
// nothing if the link has time for it: to the host between the page's last use
// and the operator that needs its memory, and back before its next use. To make
// bytes again costs time of the device, in any case. So the plan fills the
// link's free time with the pages that are the dearest to make for their size,
// and drops the rest. Operators' times are measured while memory is short.
//
// The time of an operator is the link's time, in each direction, and a copy
// takes what is free first on its way out, and what is free last on its way
// back. What cannot be made again is copied in any case, and counts first.
//
// A page that is to be dropped stays until its memory is needed. What dies
// without another use, and can be made again until then, is never copied: it is
// there only since others may be made from it (Note [Small sources]).

// A copy that could be spared needs so many times its time to be free: others
// begin later than they could, and operators need more memory than planned.
constexpr uint64_t kCopySlack = 3;

// How long the interval's page takes to the host or back, nanoseconds.
inline uint64_t copy_time(const Interval& it, double ns_per_byte) {
  return static_cast<uint64_t>(ns_per_byte * static_cast<double>(it.bytes));
}

// The free time of one direction of the link, by position of a cycle.
class FreeTime {
 public:
  explicit FreeTime(const std::vector<uint32_t>& ns);

  // In so many positions from `begin` on, which may go around: nanoseconds.
  uint64_t sum(uint64_t begin, uint64_t length) const;
  // Takes the first of it there, or all if there is no more than that. Returns
  // what is missing then.
  uint64_t take_first(uint64_t begin, uint64_t length, uint64_t ns);
  // The same with the last of it.
  uint64_t take_last(uint64_t begin, uint64_t length, uint64_t ns);
  // In how many positions the last of it is; `length` if there is less.
  uint64_t last(uint64_t begin, uint64_t length, uint64_t ns) const;

 private:
  uint64_t sum_before(uint64_t position) const;
  void take(uint64_t position, uint64_t ns);

  std::vector<uint64_t> free_; // by position
  std::vector<uint64_t> sums_; // a Fenwick tree of it
};

// Chooses which of the evicted intervals of a cycle are copied.
class Link {
 public:
  // `resident`: bytes by position if what is evicted is on the device for its
  // uses only. `copy_ns`: nanoseconds per byte.
  Link(
      Cycle& cycle,
      const std::vector<int64_t>& resident,
      size_t capacity,
      double copy_ns);

  void run();
  // Microseconds that the operators take together, and besides them the copies
  // that the link had no free time for.
  double copying_us() const;

 private:
  struct Window { // positions
    uint64_t begin;
    uint64_t length;
  };
  Window out(const Interval& it) const;
  static Window in(const Interval& it);
  bool has_time(const Interval& it) const;
  void copy(const Interval& it);
  uint64_t ns(const Interval& it) const;

  Cycle& cycle_;
  RangeMaximum resident_; // bytes by position
  const int64_t capacity_;
  const double copy_ns_;
  FreeTime out_;
  FreeTime in_;
  uint64_t late_out_ = 0; // nanoseconds of copies without free time
  uint64_t late_in_ = 0;
};

} // namespace at::cuda::lms
