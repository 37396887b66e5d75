#include "async.h"

namespace simcuda {

bool simulate_async(
    const c10::OperatorHandle&,
    c10::ArrayRef<c10::IValue>,
    const c10::cuda::CUDAStream&,
    torch::jit::Stack&) {
  return false;
}

}  // namespace simcuda
