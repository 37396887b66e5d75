// What a kernel costs: arithmetic, by PyTorch's own formulas, and traffic.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "../simcuda.h"

namespace simcuda {

SimcudaKernel find_cost(const c10::OperatorHandle& op,
                        c10::ArrayRef<c10::IValue> arguments,
                        const torch::jit::Stack& results);

}  // namespace simcuda
