#include "kernel.h"

#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDAGuard.h>

#include <cstring>

#include "../simcuda.h"
#include "async.h"
#include "compute.h"
#include "cublas.h"
#include "outputs.h"
#include "placement.h"
#include "timed.h"
#include "values.h"

namespace simcuda {
namespace {

void simulate_inline(const c10::OperatorHandle& op,
                     c10::ArrayRef<c10::IValue> arguments,
                     c10::cuda::CUDAStream stream, torch::jit::Stack& results) {
  C10_CUDA_CHECK(simcudaDrain(stream.stream(), stream.device_index()));
  Computation computation(op, arguments, stream.device(), /*own=*/false);
  computation.run();
  const auto& schema = op.schema();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (is_written(schema.arguments()[i])) {
      settle_resized(arguments[i], computation.arguments()[i], stream);
    }
  }
  for (size_t i = 0; i < computation.results().size(); ++i) {
    const c10::IValue* same = find_aliased(schema, i, arguments);
    results.push_back(
        same != nullptr ? *same : to_device(computation.results()[i], stream));
  }
}

}  // namespace

void simulate(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static const bool timed = simcudaIsTimed() != 0;
  TORCH_CHECK_NOT_IMPLEMENTED(timed || can_compute(op), op.operator_name(),
                              " is not simulated: it exists for CUDA only");
  const size_t count = op.schema().arguments().size();
  const std::vector<c10::IValue> arguments(
      stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  const c10::Device device = find_device(op.schema(), arguments);
  const c10::cuda::CUDAGuard guard(device);
  const auto stream = c10::cuda::getCurrentCUDAStream(device.index());
  take_workspace(op);
  torch::jit::Stack results;
  if (timed) {
    simulate_timed(op, arguments, stream, results);
  } else if (!simulate_async(op, arguments, stream, results)) {
    simulate_inline(op, arguments, stream, results);
  }
  torch::jit::drop(*stack, count);
  for (c10::IValue& result : results) {
    stack->push_back(std::move(result));
  }
}

}  // namespace simcuda
