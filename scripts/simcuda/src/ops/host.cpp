#include "host.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <array>

#include "../simcuda.h"
#include "values.h"

namespace simcuda {
namespace {

// Smaller tensors may have values that somebody looks at.
constexpr size_t kLarge = 1 << 20;

constexpr std::array<const char*, 8> kOptimizers = {
    "_fused_adam_",    "_fused_adam_.tensor_lr",
    "_fused_adamw_",   "_fused_adamw_.tensor_lr",
    "_fused_sgd_",     "_fused_sgd_.tensor_lr",
    "_fused_adagrad_", "_fused_adagrad_.tensor_lr"};

// Gradients are read, parameters and state are written as well.
void step(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& parameters = op.schema().arguments();
  double bytes = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const double times = parameters[i].name() == "grads" ? 1 : 2;
    const c10::IValue& argument =
        torch::jit::peek(*stack, i, parameters.size());
    if (argument.isTensorList()) {
      for_each_tensor(argument, [&](const at::Tensor& t) {
        bytes += times * static_cast<double>(t.nbytes());
      });
    }
  }
  torch::jit::drop(*stack, parameters.size());
  simcudaSpendHostTraffic(bytes);
}

at::Tensor& zero(at::Tensor& self) {
  if (self.nbytes() < kLarge || !self.is_non_overlapping_and_dense()) {
    return self.fill_(0);
  }
  simcudaWriteZeros(self.mutable_data_ptr(), self.nbytes());
  return self;
}

// Whatever the program has is copied; what it only asked for is not.
at::Tensor pin(const at::Tensor& self, std::optional<at::Device> /*device*/) {
  at::Tensor result = at::empty_like(self, self.options().pinned_memory(true));
  if (!self.is_non_overlapping_and_dense() ||
      result.strides() != self.strides()) {
    return result.copy_(self);
  }
  simcudaSpendHostTraffic(2.0 * static_cast<double>(self.nbytes()));
  simcudaCopyHost(result.mutable_data_ptr(), self.const_data_ptr(),
                  self.nbytes());
  return result;
}

}  // namespace

void time_host() {
  // Never unregistered: the process ends with it.
  static auto* library = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  for (const char* name : kOptimizers) {
    library->impl(name, torch::CppFunction::makeFromBoxedFunction<&step>());
  }
  library->impl("zero_", &zero);
  library->impl("_pin_memory", &pin);
}

}  // namespace simcuda
