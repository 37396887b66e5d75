// From the results of a computation to the operator's results.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/cuda/CUDAStream.h>

namespace simcuda {

// True when the schema says that the operator writes to the argument.
bool is_written(const c10::Argument& argument);

// True when a result is a number or a truth value that the host waits for. An
// integer is not: operators that return one count their arguments.
bool answers_host(const c10::FunctionSchema& schema);

// The argument that the schema says this result is, or nullptr.
const c10::IValue* find_aliased(const c10::FunctionSchema& schema,
                                size_t result,
                                c10::ArrayRef<c10::IValue> arguments);

// CUDA tensors, of the real allocator, with the values of CPU tensors. The
// stream has been drained.
c10::IValue to_device(const c10::IValue& computed,
                      const c10::cuda::CUDAStream& stream);

// Does to written CUDA tensors what the operator did to their aliases' sizes
// and memory.
void settle_resized(const c10::IValue& argument, const c10::IValue& alias,
                    const c10::cuda::CUDAStream& stream);

// Resizes a CUDA tensor to the sizes and strides of another tensor, with
// resize_, which may queue a copy of the old contents.
void give_shape(const at::Tensor& to, const at::Tensor& from);

// A CUDA tensor of these sizes, strides and bits, not filled.
at::Tensor empty_like_on(const at::Tensor& tensor, c10::Device device);

}  // namespace simcuda
