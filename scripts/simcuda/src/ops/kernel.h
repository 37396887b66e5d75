// The boxed kernel that stands in for a CUDA kernel.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace simcuda {

// Computes `op` on the current stream of its tensors' device: at once, having
// waited for the stream, or on the stream's worker, or in virtual time only
// (SIMCUDA_KERNELS).
void simulate(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace simcuda
