// Floating-point operations, by the formulas of torch.utils.flop_counter. They
// are Python's: asked once for the same operator and shapes.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

namespace simcuda {

bool has_flops(const std::string& name);  // "aten::mm"

double find_flops(const c10::FunctionSchema& schema,
                  c10::ArrayRef<c10::IValue> arguments,
                  const torch::jit::Stack& results);

}  // namespace simcuda
