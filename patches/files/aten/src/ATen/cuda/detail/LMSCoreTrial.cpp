#include <ATen/cuda/detail/LMSCoreTrial.h>

namespace at::cuda::lms {

Trial::Verdict Trial::follow(
    uint64_t now,
    uint64_t cycle,
    uint64_t gains,
    double elapsed_us,
    double stalled_us) {
  const uint64_t settling = makes_again_ ? cycle : kSettling * cycle;
  if (is_over_ || now < begun_at_ + settling) {
    return Verdict::kGoOn;
  }
  if (!is_timing_) {
    if (makes_again_ && tries_ < kMostTries &&
        (tries_ == 1 || knows_more(gains))) {
      ++tries_;
      return Verdict::kPlanAnew;
    }
    is_timing_ = true;
    began_us_ = elapsed_us;
    stalled_us_ = stalled_us;
    return Verdict::kGoOn;
  }
  if (now < begun_at_ + settling + cycle) {
    return Verdict::kGoOn;
  }
  const double took = elapsed_us - began_us_;
  if (makes_again_) {
    is_over_ = true;
    makes_again_ = took < copying_us_ + copying_us_ / kMostLost;
    return makes_again_ ? Verdict::kGoOn : Verdict::kPlanAnew;
  }
  if (gains > 0 && stalled_us - stalled_us_ > took / kMostStalled) {
    copying_us_ = took;
    makes_again_ = true;
    tries_ = 1;
    return Verdict::kPlanAnew;
  }
  began_us_ = elapsed_us; // the next cycle is timed
  stalled_us_ = stalled_us;
  begun_at_ += cycle;
  return Verdict::kGoOn;
}

} // namespace at::cuda::lms
