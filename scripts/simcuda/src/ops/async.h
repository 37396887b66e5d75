// Kernels on their stream's worker, while the host runs ahead.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/cuda/CUDAStream.h>

namespace simcuda {

// False when the call must be computed at once instead: in inline mode, but for
// stream captures, or because its results' shapes depend on data.
bool simulate_async(const c10::OperatorHandle& op,
                    c10::ArrayRef<c10::IValue> arguments,
                    const c10::cuda::CUDAStream& stream,
                    torch::jit::Stack& results);

}  // namespace simcuda
