#pragma once

#include <ATen/cuda/detail/LMSCorePolicy.h>

#include <cstdint>

namespace at::cuda::lms {

// Note [Trying what is faster]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Whether it is faster to make bytes again than to copy them depends on much
// that no plan knows: which of the copies are hidden, which operators run
// beside them, what a card does under load. So it is tried. Bytes are made
// again at first, with a plan and without one, where that takes less time than
// their copy. A plan that does so is followed until some cycles of it have been
// timed. Then one that only copies is followed and timed as well, unless it is
// slower by its own reckoning, and the faster one stays. Where nothing can be
// made again there is nothing to try.
class Trial {
 public:
  // kMark: when the device gets here is to be known. kPlanAnew: another plan is
  // to be made, since it is to be of the other kind, or more is known by now.
  enum class Verdict { kGoOn, kMark, kPlanAnew };

  // The plan that is followed, or to be made, may make bytes again.
  bool makes_again() const {
    return makes_again_;
  }

  // A plan is to be made of a cycle of so many operators. Much longer ones than
  // before are of another sequence: layers of a forward pass, which are alike,
  // are a cycle, too.
  void note_cycle(uint64_t operators);

  // A plan has been made. True if it is not to be followed: the one before is
  // faster than this one can be. `copying_us`: see Plan.
  bool declines(double copying_us);
  // The plan that is followed is of the kind that is to be: else another one is
  // to be made. It is not where the second one that only copies is declined.
  bool is_of_kind() const {
    return follows_copies_ != makes_again_;
  }
  // It is followed from the operator on. `gains`: of its intervals, those whose
  // pages could be made again.
  void begin(uint64_t now, uint64_t gains);
  // After each operator. `gains`: uses of what could be made again, since
  // begin.
  Verdict follow(
      uint64_t now,
      uint64_t cycle,
      uint64_t gains,
      const Clock& clock);
  // Something else ran in between: what is being timed is timed anew.
  void interrupt(uint64_t now);
  // None is followed any more. Where that happens before copies have been timed
  // it would again, so they are not tried any more.
  void end_plan();
  // Nothing of this is known of another sequence.
  void forget() {
    *this = Trial();
  }

 private:
  // To save less of a cycle than 1 / kLeastSaved is no reason to make bytes
  // again: cycles differ.
  static constexpr double kLeastSaved = 100;
  // A plan's own reckoning of how long its copies take is right to one part in
  // kLeastSlower: what is slower by more than that need not be tried.
  static constexpr double kLeastSlower = 30;
  // The first cycles of a plan still have pages that are where the last one
  // left them.
  static constexpr uint64_t kSettling = 2;
  // And those that follow differ by a tenth now and then.
  static constexpr uint64_t kTimed = 3;
  // The first plan is made of a cycle of the other kind, or of one without a
  // plan, and how long it takes to make bytes is found out while memory is
  // short already. So it is made anew after a cycle of its own, and again while
  // that is known of one part in kMoreGains more, but not after kMostPlans.
  static constexpr uint64_t kMoreGains = 8;
  static constexpr int kMostPlans = 3;
  static constexpr uint64_t kMuchLonger = 2; // times

  // The time begins and ends with a mark. The host is ahead of the device by
  // then, so they pass later.
  enum class Phase { kSettling, kTiming, kTimed };

  bool is_stale(uint64_t gains) const;
  Verdict judge(double took_us);
  Verdict change_kind();

  bool makes_again_ = true;
  bool is_over_ = false;
  bool follows_copies_ = false; // a plan that only copies
  uint64_t longest_ = 0; // cycle of which a plan was made, operators
  int plans_ = 0; // of this kind, one after the other
  uint64_t begun_at_ = 0; // the operator
  uint64_t planned_gains_ = 0;
  Phase phase_ = Phase::kSettling;
  uint64_t mark_ = 0; // the last one
  double making_us_ = 0; // of kTimed cycles that make bytes again
};

} // namespace at::cuda::lms
