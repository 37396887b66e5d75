#pragma once

#include <ATen/Context.h>

#include <optional>
#include <utility>

namespace at::cuda::lms {

// The switches of the process that kernels read: with others, an operator may
// give other bits.
class Flags {
 public:
  // None if they cannot be known.
  static std::optional<Flags> now();
  bool operator==(const Flags& other) const;
  bool operator!=(const Flags& other) const {
    return !(*this == other);
  }
  // Sets them for the process, which has `now`. Whether TF32 is allowed has
  // finer settings behind it since PyTorch 2.9, which setting it again would
  // lose.
  void apply(const std::optional<Flags>& now) const;

 private:
  bool tf32_cublas_ = false;
  bool tf32_cudnn_ = false;
  decltype(std::declval<at::Context>().allowFP16ReductionCuBLAS()) fp16_{};
  decltype(std::declval<at::Context>().allowBF16ReductionCuBLAS()) bf16_{};
  bool cudnn_ = false;
  bool cudnn_benchmark_ = false;
  bool cudnn_deterministic_ = false;
  bool deterministic_ = false;
  bool deterministic_warns_ = false;
};

// While one lives, the process has these flags. Other threads should not run
// operators meanwhile: where a program changes flags and computes in several
// threads at once, it does not know which flags count, either.
class FlagsScope {
 public:
  explicit FlagsScope(const Flags& flags)
      : before_(Flags::now()), flags_(flags) {
    if (before_ == flags) {
      before_.reset();
    } else {
      flags.apply(before_);
    }
  }
  FlagsScope(const FlagsScope&) = delete;
  FlagsScope& operator=(const FlagsScope&) = delete;
  ~FlagsScope() {
    if (before_) {
      before_->apply(flags_);
    }
  }

 private:
  std::optional<Flags> before_;
  Flags flags_;
};

} // namespace at::cuda::lms
