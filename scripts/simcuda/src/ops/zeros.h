// What an operator answers when every tensor on the device is zero.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "shapes.h"

namespace simcuda {

// Runs the CPU's kernel. Tensors that are only read take no memory, whatever
// their size. Raises an error that names the operator when it cannot be done:
// the operator exists for CUDA only, or writes to a tensor too large to make.
Shapes compute_on_zeros(const c10::OperatorHandle& op,
                        c10::ArrayRef<c10::IValue> arguments);

}  // namespace simcuda
