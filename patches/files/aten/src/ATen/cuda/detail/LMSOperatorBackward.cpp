#include <ATen/cuda/detail/LMSOperatorBackward.h>

#include <ATen/cuda/detail/LMSDevice.h>
#include <torch/csrc/autograd/function.h>

#include <atomic>
#include <mutex>
#include <utility>

namespace at::cuda::lms {
namespace {

std::atomic<bool> several_streams{false};
std::mutex passes_mutex; // no other mutex of LMS is held when it is taken
int running_passes = 0; // guarded by passes_mutex
thread_local AutogradScope autograd_scope = AutogradScope::kNone;

} // namespace

bool uses_several_streams() {
  return several_streams.load(std::memory_order_relaxed);
}

void set_uses_several_streams() {
  several_streams.store(true, std::memory_order_relaxed);
}

AutogradScope set_autograd_scope(AutogradScope scope) {
  return std::exchange(autograd_scope, scope);
}

bool makes_gradients() {
  if (C10_LIKELY(!uses_several_streams())) {
    return false;
  }
  return autograd_scope == AutogradScope::kNone
      ? torch::autograd::get_current_node() != nullptr
      : autograd_scope == AutogradScope::kBackward;
}

void begin_backward() {
  std::lock_guard<std::mutex> lock(passes_mutex);
  ++running_passes;
}

void end_backward() {
  // Held to the end: no pass may begin before all are checked again.
  std::lock_guard<std::mutex> lock(passes_mutex);
  if (--running_passes == 0) {
    for (Device* device : Device::all()) {
      device->checks().forbid_crossing();
    }
  }
}

} // namespace at::cuda::lms
