// The shapes of an operator's results, from its meta kernel.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <vector>

namespace simcuda {

// In-place operators on lists never change a shape, and are asked for often.
bool is_plain_in_place(const c10::FunctionSchema& schema);

// Meta tensors.
struct Shapes {
  std::vector<c10::IValue> arguments;  // after the call
  torch::jit::Stack results;
};

// False when the meta kernel cannot tell; the computation then tells, or raises
// the error.
bool find_shapes(const c10::OperatorHandle& op,
                 c10::ArrayRef<c10::IValue> arguments, Shapes& shapes);

// Gives written tensors the shapes that the operator will give them.
void resize_written(const c10::FunctionSchema& schema,
                    c10::ArrayRef<c10::IValue> arguments,
                    c10::ArrayRef<c10::IValue> shapes);

}  // namespace simcuda
