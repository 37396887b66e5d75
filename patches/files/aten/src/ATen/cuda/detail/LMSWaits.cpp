#include <ATen/cuda/detail/LMSWaits.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/operator_name.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <atomic>
#include <functional>

namespace at::cuda::lms {
namespace {

struct Watchers {
  std::atomic<int64_t> begin{0};
  std::atomic<int64_t> end{0};
};
Watchers watchers;

void call_watcher(int64_t function, c10::DeviceIndex device) {
  if (function != 0) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    reinterpret_cast<void (*)(int64_t)>(function)(device);
  }
}

} // namespace

void watch_waits(int64_t begin, int64_t end) {
  watchers.begin = begin;
  watchers.end = end;
}

bool are_waits_watched() {
  return watchers.begin.load(std::memory_order_relaxed) != 0;
}

bool may_wait_in(uint64_t operator_name) {
  if (C10_LIKELY(!are_waits_watched())) {
    return true;
  }
  static const uint64_t cast =
      std::hash<c10::OperatorName>()(c10::OperatorName("aten::_to_copy", ""));
  return operator_name != cast;
}

WaitScope::WaitScope(c10::DeviceIndex device)
    : device_(device), end_(watchers.end.load()) {
  call_watcher(end_ != 0 ? watchers.begin.load() : 0, device_);
}

WaitScope::~WaitScope() {
  call_watcher(end_, device_);
}

void wait_before_reading(c10::ArrayRef<c10::IValue> arguments) {
  const auto is_on_device = [](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().is_cuda();
  };
  const auto* source =
      std::find_if(arguments.begin(), arguments.end(), is_on_device);
  // The target of a copy comes first, and whether it may go on without waiting
  // comes last.
  const bool is_copy_to_device =
      source == arguments.begin() && arguments.size() > 2;
  if (source == arguments.end() || is_copy_to_device ||
      (arguments.back().isBool() && arguments.back().toBool())) {
    return;
  }
  const auto device = source->toTensor().device().index();
  const WaitScope wait(device);
  // The operator would wait for the stream, and let nobody go on meanwhile.
  c10::cuda::getCurrentCUDAStream(device).synchronize();
}

} // namespace at::cuda::lms
