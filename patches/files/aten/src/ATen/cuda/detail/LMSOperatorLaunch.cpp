#include <ATen/cuda/detail/LMSOperatorLaunch.h>

#include <ATen/cuda/detail/LMSOperatorAttempt.h>
#include <ATen/cuda/detail/LMSOperatorCollectives.h>
#include <ATen/cuda/detail/LMSOperatorScope.h>
#include <ATen/cuda/detail/LMSOperatorTouched.h>
#include <ATen/cuda/detail/LMSOperators.h>
#include <ATen/cuda/detail/LMSSettings.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>

namespace at::cuda::lms {
namespace {

class Launch {
 public:
  Launch(
      const std::string& name,
      const std::vector<at::Tensor>& arguments,
      int64_t written)
      : is_inside_(is_adoption_paused()) {
    if (!Settings::get().active()) {
      return;
    }
    look_after_collectives();
    scope_.emplace(
        std::hash<std::string>()(name),
        pin_touched(
            touched_by_launch(arguments, static_cast<uint64_t>(written)),
            !is_inside_));
    if (C10_UNLIKELY(Trace::get() != nullptr)) {
      scope_->record({name, ""});
    }
    if (!is_inside_) {
      scope_->time();
    }
    pause_.emplace();
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;
  ~Launch() = default;

  void end() {
    pause_.reset();
    if (!scope_) {
      return;
    }
    scope_->end();
    if (is_inside_) {
      note_step();
    } else {
      scope_->adopt({});
    }
  }

 private:
  const UnderWay counted_;
  const bool is_inside_; // of an operator or another launch
  std::optional<OperatorScope> scope_; // none while LMS is off
  std::optional<AdoptionPause> pause_;
};

thread_local std::vector<std::unique_ptr<Launch>> launches; // nested

} // namespace

void begin_launch(
    const std::string& name,
    const std::vector<at::Tensor>& arguments,
    int64_t written) {
  launches.push_back(std::make_unique<Launch>(name, arguments, written));
}

void end_launch(bool failed) {
  TORCH_CHECK(!launches.empty(), "lms::end_launch: no launch has begun.");
  const std::unique_ptr<Launch> launch = std::move(launches.back());
  launches.pop_back();
  if (!failed) {
    launch->end();
  }
}

} // namespace at::cuda::lms
