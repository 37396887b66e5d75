#include "zeros.h"

#include <ATen/ATen.h>

#include "compute.h"
#include "outputs.h"
#include "random.h"
#include "values.h"

namespace simcuda {
namespace {

// Bytes of a tensor that is written to, at most.
constexpr size_t kLargest = 256 << 20;

at::Tensor zeros(const at::Tensor& like, bool written,
                 const c10::OperatorHandle& op) {
  if (!like.is_cuda()) {
    return like;
  }
  const auto options = at::TensorOptions().dtype(like.scalar_type());
  if (!written) {
    return at::zeros({}, options).expand(like.sizes());
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      like.nbytes() <= kLargest, op.operator_name(),
      " has no meta kernel and writes to a tensor of ", like.nbytes(),
      " bytes: the timing mode of the simulated device cannot tell its result");
  return at::zeros(like.sizes(), options);
}

}  // namespace

Shapes compute_on_zeros(const c10::OperatorHandle& op,
                        c10::ArrayRef<c10::IValue> arguments) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      can_compute(op), op.operator_name(),
      " exists for CUDA only and has no meta kernel: the timing mode of the "
      "simulated device cannot tell its result");
  BelowEverything guard;
  Shapes found;
  const auto& parameters = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool written = is_written(parameters[i]);
    found.arguments.push_back(
        arguments[i].isDevice()
            ? c10::IValue(c10::Device(c10::kCPU))
            : map_tensors(arguments[i], [&](const at::Tensor& t) {
                return zeros(t, written, op);
              }));
    if (arguments[i].isGenerator()) {
      found.arguments.back() = c10::IValue();
    }
  }
  found.results = found.arguments;
  // Not the program's generator: its numbers shall not change.
  const bool random = is_random(op.schema());
  run_on_cpu(op, random ? generator_at(0, 0) : at::Generator(), found.results);
  return found;
}

}  // namespace simcuda
