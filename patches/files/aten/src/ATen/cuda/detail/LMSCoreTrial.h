#pragma once

#include <ATen/cuda/detail/LMSCorePolicy.h>

#include <cstdint>

namespace at::cuda::lms {

// Note [Trying what is faster]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Whether it is faster to make bytes again than to copy them depends on much
// that no plan knows: which of the copies are hidden, which operators run
// beside them, what a card does under load. So it is tried. A plan that only
// copies is followed until some cycles of it have been timed. If streams stood
// still for copies meanwhile, one that makes bytes again is followed and timed
// as well, and the faster one stays.
class Trial {
 public:
  // kMark: when the device gets here is to be known. kPlanAnew: another plan is
  // to be made, since it is to be of the other kind, or more is known of what
  // can be made again.
  enum class Verdict { kGoOn, kMark, kPlanAnew };

  // The plan that is followed, or to be made, may make bytes again.
  bool makes_again() const {
    return makes_again_;
  }

  // Another plan is followed from the operator on. `gains`: of its intervals,
  // those whose pages could be made again.
  void begin(uint64_t now, uint64_t gains) {
    begun_at_ = now;
    planned_gains_ = gains;
    phase_ = Phase::kSettling;
  }
  // After each operator. `gains`: uses of what could be made again, since
  // begin.
  Verdict follow(
      uint64_t now,
      uint64_t cycle,
      uint64_t gains,
      const Clock& clock);
  // Nothing of this is known of another sequence.
  void forget() {
    *this = Trial();
  }

 private:
  // Less of a cycle than 1 / kMostStalled is no reason to try, and to save less
  // than 1 / kLeastSaved of it is none to make bytes again: cycles differ.
  static constexpr double kMostStalled = 50;
  static constexpr double kLeastSaved = 100;
  // The first cycles of a plan still have pages that are where the last one
  // left them.
  static constexpr uint64_t kSettling = 2;
  // And those that follow differ by a tenth now and then.
  static constexpr uint64_t kTimed = 3;
  // How long it takes to make bytes is found out while memory is short already.
  // A plan is made anew if that is known of one part in kMoreGains more, but
  // not more often than kMostTries.
  static constexpr uint64_t kMoreGains = 8;
  static constexpr int kMostTries = 3;

  bool knows_more(uint64_t gains) const {
    return gains > planned_gains_ + planned_gains_ / kMoreGains;
  }

  // The time begins and ends with a mark. The host is ahead of the device by
  // then, so they pass later.
  enum class Phase { kSettling, kTiming, kTimed };

  Verdict judge(double took_us, double stalled_us, uint64_t gains);

  bool makes_again_ = false;
  bool is_over_ = false;
  // The plan that only copies was made of a cycle in which bytes were made
  // again, which takes memory.
  bool is_plan_stale_ = false;
  int tries_ = 0; // plans that make bytes again
  uint64_t begun_at_ = 0; // the operator
  uint64_t planned_gains_ = 0;
  Phase phase_ = Phase::kSettling;
  uint64_t mark_ = 0; // the last one
  double stalled_us_ = 0; // at the first one
  double copying_us_ = 0; // of kTimed cycles that only copy
};

} // namespace at::cuda::lms
