#include <ATen/cuda/detail/LMSOperatorFlags.h>

#include <atomic>
#include <tuple>
#include <type_traits>

namespace at::cuda::lms {
namespace {

// A bool until PyTorch 2.8, three values since.
template <class Option, class Set> void set_reduction(Option option, Set set) {
  if constexpr (std::is_same_v<Option, bool>) {
    set(option);
  } else {
    set(option == Option::AllowReducedPrecisionWithSplitK,
        option != Option::DisallowReducedPrecisionDisallowSplitK);
  }
}

} // namespace

// From PyTorch 2.9 on a program that mixes the old and the new settings of TF32
// gets an error when the old ones are read.
std::optional<Flags> Flags::now() {
  static std::atomic<bool> are_known{true};
  if (!are_known.load(std::memory_order_relaxed)) {
    return std::nullopt;
  }
  const at::Context& context = at::globalContext();
  Flags flags;
  try {
    flags.tf32_cublas_ = context.allowTF32CuBLAS();
    flags.tf32_cudnn_ = context.allowTF32CuDNN();
  } catch (const c10::Error&) {
    are_known.store(false);
    return std::nullopt;
  }
  flags.fp16_ = context.allowFP16ReductionCuBLAS();
  flags.bf16_ = context.allowBF16ReductionCuBLAS();
  flags.cudnn_ = context.userEnabledCuDNN();
  flags.cudnn_benchmark_ = context.benchmarkCuDNN();
  flags.cudnn_deterministic_ = context.deterministicCuDNN();
  flags.deterministic_ = context.deterministicAlgorithms();
  flags.deterministic_warns_ = context.deterministicAlgorithmsWarnOnly();
  return flags;
}

bool Flags::operator==(const Flags& other) const {
  const auto all = [](const Flags& flags) {
    return std::tie(
        flags.tf32_cublas_,
        flags.tf32_cudnn_,
        flags.fp16_,
        flags.bf16_,
        flags.cudnn_,
        flags.cudnn_benchmark_,
        flags.cudnn_deterministic_,
        flags.deterministic_,
        flags.deterministic_warns_);
  };
  return all(*this) == all(other);
}

void Flags::apply(const std::optional<Flags>& now) const {
  at::Context& context = at::globalContext();
  if (!now || tf32_cublas_ != now->tf32_cublas_) {
    context.setAllowTF32CuBLAS(tf32_cublas_);
  }
  if (!now || tf32_cudnn_ != now->tf32_cudnn_) {
    context.setAllowTF32CuDNN(tf32_cudnn_);
  }
  set_reduction(fp16_, [&context](auto... values) {
    context.setAllowFP16ReductionCuBLAS(values...);
  });
  set_reduction(bf16_, [&context](auto... values) {
    context.setAllowBF16ReductionCuBLAS(values...);
  });
  context.setUserEnabledCuDNN(cudnn_);
  context.setBenchmarkCuDNN(cudnn_benchmark_);
  context.setDeterministicCuDNN(cudnn_deterministic_);
  context.setDeterministicAlgorithms(deterministic_, deterministic_warns_);
}

} // namespace at::cuda::lms
