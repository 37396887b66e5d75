#pragma once

#include <ATen/cuda/detail/LMSHistory.h>

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
//  1. What must leave: the cycle is simulated, and wherever its pages do not
//     fit, the idle page whose next use is farthest leaves (Belady's rule; one
//     that dies is not copied back, so its time counts several times as much).
//     Room for a typical page is left over, so that one can arrive while others
//     are in use: without it fewer bytes would move, but nothing could overlap.
//     The simulation runs three cycles, so that what is found is the steady
//     state. That need not have the period of the cycle (the pages that stay
//     may be others in each), so where its second cycle, repeated, does not
//     fit, more leaves.
//  2. A page that leaves does so right after the use before, which spreads the
//     copies and gives the room early.
//  3. When it comes back: as early as there is room up to its next use, given
//     everything else that is resident then; who is needed first is first. So
//     fetching never evicts what is needed sooner, and the copies are in the
//     order of need.
// Positions are operators of the cycle, 0 to n - 1; position n is 0 again.
class Plan {
 public:
  struct Interval {
    uint32_t begin = 0; // position of the use before
    uint32_t length = 0; // operators until the next use; 0: there is none
    uint32_t death = 0; // operators until the page dies, if length is 0
    bool is_endless = false; // neither is known
    bool leaves = false;
    size_t bytes = 0;
    Page* page = nullptr; // on the host by this plan
  };

  // Plans the cycle that ends with the latest operator, for pages that may take
  // `capacity` bytes together.
  Plan(const History& history, size_t capacity);

  uint32_t length() const {
    return static_cast<uint32_t>(starts_.size());
  }
  // False if the whole cycle fits.
  bool has_traffic() const {
    return has_traffic_;
  }
  // The interval that begins with a use.
  Interval& interval(uint32_t position, uint32_t slot) {
    return intervals_[number(position, slot)];
  }
  uint32_t slots(uint32_t position) const;
  // Intervals are also numbered through.
  uint32_t number(uint32_t position, uint32_t slot) const {
    return starts_[position] + slot;
  }
  Interval& at(uint32_t number) {
    return intervals_[number];
  }
  const Interval& at(uint32_t number) const {
    return intervals_[number];
  }
  uint32_t count() const {
    return static_cast<uint32_t>(intervals_.size());
  }
  // The page dies while it is idle.
  void forget(const Page& page, const History& history, uint64_t planned_at);
  // By interval: its page should be on its way back when the cycle ends.
  std::vector<char> due() const;
  // Intervals whose pages come back right after the operator.
  const std::vector<uint32_t>& fetches(uint32_t position) const {
    return fetches_[position];
  }

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};

  void read(const History& history);
  void find_before(
      const History& history,
      uint64_t index,
      uint32_t slot,
      uint64_t first);
  Interval read_interval(
      const History& history,
      uint64_t index,
      uint32_t slot,
      uint64_t first) const;
  size_t typical() const;
  void choose_leaving(size_t capacity);
  void choose_more_leaving(size_t capacity);
  void choose_fetches(size_t capacity);
  std::vector<int64_t> managed(size_t below) const;
  std::vector<int64_t> residency() const;

  std::vector<Interval> intervals_; // by position, then slot
  std::vector<uint32_t> starts_; // by position: of its intervals
  std::vector<uint32_t> before_; // by interval: the one that ends with its use
  std::vector<size_t> unmanaged_; // by position, bytes
  std::vector<std::vector<uint32_t>> fetches_; // by position
  size_t least_ = 0; // bytes of a page that may leave
  bool has_traffic_ = false;
};

} // namespace at::cuda::lms
