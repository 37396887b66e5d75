#include <ATen/cuda/detail/LMSOperatorWorkspace.h>

#include <ATen/core/Tensor.h>
#include <ATen/cuda/detail/LMSCompat.h>
#include <ATen/cuda/detail/LMSCudaCaptures.h>
#include <ATen/cuda/detail/LMSOperatorTouched.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <string>
#include <tuple>
#include <vector>

namespace at::cuda::lms {
namespace {

constexpr std::array<const char*, 6> kProducts{
    "aten::addmv",
    "aten::baddbmm",
    "aten::bmm",
    "aten::dot",
    "aten::mm",
    "aten::vdot"};
constexpr std::array<const char*, 4> kProductsOfLt{
    "aten::_addmm_activation",
    "aten::_int_mm",
    "aten::_scaled_mm",
    "aten::addmm"};

template <class List> bool has(const List& list, const std::string& name) {
  return std::any_of(
      list.begin(), list.end(), [&](const char* one) { return name == one; });
}

std::atomic<uint64_t> freed_workspaces{0};

thread_local bool is_preparing = false;

// What the thread has workspaces for, as long as none are freed.
struct Prepared {
  uint64_t freed = 0;
  std::vector<std::tuple<BlasUse, c10::DeviceIndex, cudaStream_t>> uses;
};
thread_local Prepared prepared;

class Preparing {
 public:
  Preparing() {
    is_preparing = true;
  }
  Preparing(const Preparing&) = delete;
  Preparing& operator=(const Preparing&) = delete;
  ~Preparing() {
    is_preparing = false;
  }
};

} // namespace

BlasUse blas_use(const std::string& name) {
  return has(kProductsOfLt, name) ? BlasUse::kBlasLt
      : has(kProducts, name)      ? BlasUse::kBlas
                                  : BlasUse::kNone;
}

void prepare_workspace(BlasUse use, c10::ArrayRef<c10::IValue> arguments) {
  const c10::IValue& first = arguments.front();
  if (!first.isTensor() || !first.toTensor().is_cuda()) {
    return;
  }
  const c10::DeviceIndex index = first.toTensor().get_device();
  const std::tuple wanted{use, index, current_stream(index)};
  auto& [freed, uses] = prepared;
  if (const uint64_t now = freed_workspaces.load(); freed != now) {
    freed = now;
    uses.clear();
  }
  if (C10_LIKELY(std::find(uses.begin(), uses.end(), wanted) != uses.end()) ||
      is_capturing()) { // there it is the graph's
    return;
  }
  uses.push_back(wanted);
  if (!keeps_blas_workspaces()) {
    return;
  }
  const c10::cuda::CUDAGuard guard(index);
  const Preparing now;
  try {
    make_blas_workspace();
    if (use == BlasUse::kBlasLt) {
      make_blas_lt_workspace();
    }
  } catch (const std::exception&) { // NOLINT(bugprone-empty-catch)
    // The operator finds out itself.
  }
}

bool is_preparing_workspace() {
  return is_preparing;
}

void note_freed_workspace() {
  ++freed_workspaces;
}

} // namespace at::cuda::lms
