#include "values.h"

#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>

namespace simcuda {

void for_each_tensor(const c10::IValue& value,
                     c10::function_ref<void(const at::Tensor&)> visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) {
      visit(value.toTensor());
    }
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (tensor.defined()) {
        visit(tensor);
      }
    }
  } else if (value.isOptionalTensorList()) {
    for (const auto& tensor : value.toOptionalTensorVector()) {
      if (tensor && tensor->defined()) {
        visit(*tensor);
      }
    }
  }
}

c10::IValue map_tensors(
    const c10::IValue& value,
    c10::function_ref<at::Tensor(const at::Tensor&)> replace) {
  const auto map = [&](const at::Tensor& tensor) {
    return tensor.defined() ? replace(tensor) : tensor;
  };
  if (value.isTensor()) {
    return map(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> mapped;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      mapped.push_back(map(tensor));
    }
    return mapped;
  }
  if (value.isOptionalTensorList()) {
    c10::impl::GenericList mapped(c10::OptionalType::ofTensor());
    for (const auto& tensor : value.toOptionalTensorVector()) {
      mapped.push_back(tensor ? c10::IValue(map(*tensor)) : c10::IValue());
    }
    return mapped;
  }
  return value;
}

}  // namespace simcuda
