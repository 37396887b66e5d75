// Kernels that take virtual time and compute nothing.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/cuda/CUDAStream.h>

namespace simcuda {

// Results of the right shapes, without contents, after the time that the card
// takes. Where the answer depends on data, it is that for tensors of zeros.
void simulate_timed(const c10::OperatorHandle& op,
                    c10::ArrayRef<c10::IValue> arguments,
                    const c10::cuda::CUDAStream& stream,
                    torch::jit::Stack& results);

}  // namespace simcuda
