#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

namespace at::cuda::lms {

// Whether the operator has no effects but its results and what it declares to
// write, and gives the same bits each time, with these arguments.
bool is_repeatable(
    const c10::OperatorHandle& op,
    c10::ArrayRef<c10::IValue> arguments);

// It writes to what its caller gives it for its results: "out=".
bool is_out(const c10::FunctionSchema& schema);

} // namespace at::cuda::lms
