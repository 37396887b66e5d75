// On which device an operator runs.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace simcuda {

// The device of the CUDA tensors among the arguments, of a device argument, or
// the current one. Raises PyTorch's error when tensors are on several devices:
// a replaced kernel loses the check that PyTorch's generated code makes.
c10::Device find_device(const c10::FunctionSchema& schema,
                        c10::ArrayRef<c10::IValue> arguments);

}  // namespace simcuda
