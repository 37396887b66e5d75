#include <ATen/cuda/detail/LMSCoreTrial.h>

namespace at::cuda::lms {

void Trial::note_cycle(uint64_t operators) {
  if (operators > kMuchLonger * longest_) {
    forget();
    longest_ = operators;
  }
}

bool Trial::declines(double copying_us) {
  const double reckoned_us = kTimed * copying_us;
  if (makes_again_ || is_over_ ||
      reckoned_us - reckoned_us / kLeastSlower < making_us_) {
    return false;
  }
  makes_again_ = is_over_ = true;
  plans_ = follows_copies_ ? 0 : kMostPlans;
  return true;
}

void Trial::begin(uint64_t now, uint64_t gains) {
  begun_at_ = now;
  planned_gains_ = gains;
  phase_ = Phase::kSettling;
  follows_copies_ = !makes_again_;
  ++plans_;
}

void Trial::interrupt(uint64_t now) {
  begun_at_ = now;
  phase_ = Phase::kSettling;
}

void Trial::end_plan() {
  plans_ = 0;
  follows_copies_ = false;
  if (!makes_again_ && !is_over_) {
    makes_again_ = is_over_ = true;
  }
}

bool Trial::is_stale(uint64_t gains) const {
  if (makes_again_ && planned_gains_ == 0 && gains == 0) {
    return false; // it only copies, and there is nothing else to do
  }
  return plans_ == 1 ||
      (makes_again_ && !is_over_ && plans_ < kMostPlans &&
       gains > planned_gains_ + planned_gains_ / kMoreGains);
}

Trial::Verdict Trial::follow(
    uint64_t now,
    uint64_t cycle,
    uint64_t gains,
    const Clock& clock) {
  switch (phase_) {
    case Phase::kSettling:
      if (now < begun_at_ + cycle) {
        return Verdict::kGoOn;
      }
      if (is_stale(gains)) {
        return Verdict::kPlanAnew;
      }
      if (is_over_ || (makes_again_ && planned_gains_ == 0) ||
          (!makes_again_ && now < begun_at_ + kSettling * cycle)) {
        return Verdict::kGoOn;
      }
      phase_ = Phase::kTiming;
      mark_ = now;
      return Verdict::kMark;
    case Phase::kTiming:
      if (now < mark_ + kTimed * cycle) {
        return Verdict::kGoOn;
      }
      phase_ = Phase::kTimed;
      mark_ = now;
      return Verdict::kMark;
    case Phase::kTimed:
      break;
  }
  return clock.mark == mark_ && !is_over_ ? judge(clock.mark_us)
                                          : Verdict::kGoOn;
}

Trial::Verdict Trial::judge(double took_us) {
  if (makes_again_) {
    making_us_ = took_us;
    return change_kind();
  }
  is_over_ = true;
  const bool is_making_faster = making_us_ < took_us - took_us / kLeastSaved;
  return is_making_faster ? change_kind() : Verdict::kGoOn;
}

Trial::Verdict Trial::change_kind() {
  makes_again_ = !makes_again_;
  plans_ = 0;
  return Verdict::kPlanAnew;
}

} // namespace at::cuda::lms
