#include "compute.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/clone.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "outputs.h"
#include "random.h"
#include "values.h"

namespace simcuda {
namespace {

c10::DispatchKeySet everything_above() {
  using c10::DispatchKey;
  return c10::autograd_dispatch_keyset_with_ADInplaceOrView |
         c10::autocast_dispatch_keyset |
         c10::DispatchKeySet(
             {DispatchKey::FPGA, DispatchKey::Python,
              DispatchKey::PythonTLSSnapshot, DispatchKey::Functionalize,
              DispatchKey::PreDispatch, DispatchKey::FuncTorchBatched,
              DispatchKey::FuncTorchVmapMode,
              DispatchKey::FuncTorchDynamicLayerFrontMode,
              DispatchKey::FuncTorchDynamicLayerBackMode,
              DispatchKey::FuncTorchGradWrapper});
}

// A copy that the program cannot change while the computation waits.
at::Tensor copy_of(const at::Tensor& tensor) {
  at::Tensor copy = tensor.clone();
  copy.unsafeGetTensorImpl()->set_wrapped_number(
      tensor.unsafeGetTensorImpl()->is_wrapped_number());
  return copy;
}

}  // namespace

BelowEverything::BelowEverything() : guard_(everything_above()) {}

bool can_compute(const c10::OperatorHandle& op) {
  return find_handwritten(op.operator_name()) != nullptr ||
         op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
}

Computation::Computation(const c10::OperatorHandle& op,
                         c10::ArrayRef<c10::IValue> arguments,
                         c10::Device device, bool own)
    : op_(op) {
  BelowEverything guard;
  const bool random = is_random(op.schema());
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (is_written(op.schema().arguments()[i])) {
      for_each_tensor(arguments[i], own_bytes);
    }
  }
  std::optional<at::Generator> given;
  for (const c10::IValue& argument : arguments) {
    if (argument.isDevice() && argument.toDevice().is_cuda()) {
      arguments_.emplace_back(c10::Device(c10::kCPU));
    } else if (argument.isGenerator()) {
      given = argument.toGenerator();
      arguments_.emplace_back();
    } else {
      arguments_.push_back(map_tensors(argument, [&](const at::Tensor& t) {
        return own && t.is_cpu() ? copy_of(t) : aliases_.of(t);
      }));
    }
  }
  if (random) {
    random_ = next_state(given, device.index());
  }
}

void run_on_cpu(const c10::OperatorHandle& op, at::Generator generator,
                torch::jit::Stack& stack) {
  BelowEverything guard;
  const auto& parameters = op.schema().arguments();
  for (size_t i = 0; generator.defined() && i < parameters.size(); ++i) {
    if (parameters[i].name() == "generator") {
      stack[i] = generator;
    }
  }
  std::swap(call_generator(), generator);
  try {
    if (const BoxedFunction f = find_handwritten(op.operator_name())) {
      f(&stack);
    } else {
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    }
  } catch (...) {
    std::swap(call_generator(), generator);
    throw;
  }
  std::swap(call_generator(), generator);
}

void Computation::run() {
  stack_.assign(arguments_.begin(), arguments_.end());
  run_on_cpu(op_, random_ ? generator_at(*random_) : at::Generator(), stack_);
}

}  // namespace simcuda
