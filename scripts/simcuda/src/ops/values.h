// Tensors inside boxed values: visiting and replacing them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/FunctionRef.h>

namespace simcuda {

// Calls `visit` for every defined tensor: alone, in a list, in a list of
// optional tensors.
void for_each_tensor(const c10::IValue& value,
                     c10::function_ref<void(const at::Tensor&)> visit);

// The value with every defined tensor replaced by what `replace` makes of it.
c10::IValue map_tensors(
    const c10::IValue& value,
    c10::function_ref<at::Tensor(const at::Tensor&)> replace);

}  // namespace simcuda
