#include <ATen/cuda/detail/LMSCoreTrial.h>

#include <utility>

namespace at::cuda::lms {

Trial::Verdict Trial::follow(
    uint64_t now,
    uint64_t cycle,
    uint64_t gains,
    const Clock& clock) {
  const uint64_t settling = makes_again_ ? cycle : kSettling * cycle;
  if (now < begun_at_ + settling) {
    return Verdict::kGoOn;
  }
  if (is_over_) {
    return std::exchange(is_plan_stale_, false) ? Verdict::kPlanAnew
                                                : Verdict::kGoOn;
  }
  switch (phase_) {
    case Phase::kSettling:
      if (makes_again_ && tries_ < kMostTries &&
          (tries_ == 1 || knows_more(gains))) {
        ++tries_;
        return Verdict::kPlanAnew;
      }
      phase_ = Phase::kTiming;
      mark_ = now;
      stalled_us_ = clock.stalled_us;
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
  return clock.mark == mark_
      ? judge(clock.mark_us, clock.stalled_us - stalled_us_, gains)
      : Verdict::kGoOn;
}

Trial::Verdict Trial::judge(double took_us, double stalled_us, uint64_t gains) {
  if (makes_again_) {
    is_over_ = true;
    makes_again_ = took_us < copying_us_ - copying_us_ / kLeastSaved;
    is_plan_stale_ = !makes_again_;
    return makes_again_ ? Verdict::kGoOn : Verdict::kPlanAnew;
  }
  if (gains > 0 && stalled_us > took_us / kMostStalled) {
    copying_us_ = took_us;
    makes_again_ = true;
    tries_ = 1;
    return Verdict::kPlanAnew;
  }
  phase_ = Phase::kSettling; // another cycle is timed
  return Verdict::kGoOn;
}

} // namespace at::cuda::lms
