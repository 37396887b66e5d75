// Operators with a CUDA kernel and no fitting CPU kernel, written with other
// operators. They get CPU tensors, and take their random numbers from
// call_generator().
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace simcuda {

using BoxedFunction = void (*)(torch::jit::Stack* stack);

// nullptr when the CPU's own kernel serves.
BoxedFunction find_handwritten(const c10::OperatorName& name);

// Called by the files that hold them.
void add_handwritten(const char* name, const char* overload, BoxedFunction f);
void add_attention();
void add_recurrent();
void add_others();

}  // namespace simcuda
