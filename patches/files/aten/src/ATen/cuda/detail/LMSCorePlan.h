#pragma once

#include <ATen/cuda/detail/LMSCoreCycle.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace at::cuda::lms {

// Note [Planning an iteration]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// With a lag of n, the last n operators are taken for one cycle of a sequence
// that goes on for ever. Between two uses a page is idle; that *interval* may
// be spent on the host. The plan decides which intervals are, and when their
// pages come back:
//  1. Victims: the cycle is simulated, and wherever its pages do not fit, the
//     idle page whose next use is farthest is evicted (Belady's rule; one that
//     dies is not copied back, so its time counts several times as much; and
//     what the program wants to go first or last goes before or after all
//     others, see Note [Hints]). Room
//     for a typical page is left over, so that one can arrive while others are
//     in use: without it fewer bytes would move, but nothing could overlap. The
//     simulation runs three cycles, so that what is found is the steady state.
//     That need not have the period of the cycle (the pages that stay may be
//     others in each), so where its second cycle, repeated, does not fit, more
//     is evicted.
//  2. A page is evicted right after the use before, which spreads the
//     copies and gives the room early.
//     What is only read there is written back before: Note [Writing back
//     early].
//  3. It is copied, or dropped to be made again: Note [Copy or make again].
//  4. When it comes back, if it is copied: as early as there is room up to its
//  next use, given
//     everything else that is resident then; who is needed first is first. So
//     fetching never evicts what is needed sooner, and the copies are in the
//     order of need. Thousands of operators before its use a page leaves the
//     room of 1 free that is for those on their way: it would be missing for as
//     long, to what is used in between and to join free memory.
class Plan {
 public:
  struct Range { // of intervals' numbers
    const uint32_t* first = nullptr;
    const uint32_t* last = nullptr;
    bool is_empty() const {
      return first == last;
    }
  };

  // For pages that may take `capacity` bytes together. `copy_ns`: nanoseconds
  // that a byte takes to the host.
  Plan(Cycle cycle, size_t capacity, double copy_ns, bool makes_again);

  uint32_t length() const {
    return cycle_.length();
  }
  // False if the whole cycle fits.
  bool has_traffic() const {
    return has_traffic_;
  }
  // Microseconds that a cycle takes at least, if the plan only copies.
  double copying_us() const {
    return copying_us_;
  }
  // It is known how each interval ends.
  bool is_complete() const {
    return is_complete_;
  }
  // Intervals whose pages could be made again.
  uint64_t gains() const {
    return gains_;
  }
  // The interval that begins with a use.
  Interval& interval(uint32_t position, uint32_t slot) {
    return cycle_.intervals[number(position, slot)];
  }
  uint32_t slots(uint32_t position) const {
    return cycle_.slots(position);
  }
  uint32_t number(uint32_t position, uint32_t slot) const {
    return cycle_.number(position, slot);
  }
  Interval& at(uint32_t number) {
    return cycle_.intervals[number];
  }
  const Interval& at(uint32_t number) const {
    return cycle_.intervals[number];
  }
  uint32_t count() const {
    return cycle_.count();
  }
  // The interval's page should be on its way back when the cycle ends.
  bool is_due(uint32_t number) const {
    return !is_due_.empty() && is_due_[number] != 0;
  }
  // Intervals whose pages come back right after the operator.
  Range fetches(uint32_t position) const {
    return {
        fetches_.data() + fetches_from_[position],
        fetches_.data() + fetches_from_[position + 1]};
  }
  // Intervals whose pages are written back then, and stay.
  const std::vector<uint32_t>& saves(uint32_t position) const {
    return saves_[position];
  }

 private:
  size_t typical() const;
  void choose_more_victims(size_t capacity);
  void choose_fetches(size_t capacity, size_t kept);
  std::vector<int64_t> managed(size_t below) const;
  std::vector<int64_t> residency() const;

  Cycle cycle_;
  std::vector<uint32_t> fetches_; // by position
  std::vector<uint32_t> fetches_from_; // by position, and the end
  std::vector<std::vector<uint32_t>> saves_; // by position
  std::vector<char> is_due_; // by interval; empty if nothing moves
  size_t least_ = 0; // bytes of a page that may be evicted
  uint64_t gains_ = 0;
  double copying_us_ = 0;
  bool has_traffic_ = false;
  bool is_complete_ = true;
};

} // namespace at::cuda::lms
