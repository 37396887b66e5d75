#include "placement.h"

#include <c10/cuda/CUDAFunctions.h>

#include <array>
#include <optional>

#include "values.h"

namespace simcuda {
namespace {

// Operators that take CPU tensors of any size next to CUDA tensors.
constexpr std::array<std::string_view, 9> kMixed = {
    "aten::index",
    "aten::_index_put_impl_",
    "aten::_unsafe_index",
    "aten::index_put_",
    "aten::index_put",
    "aten::copy_",
    "aten::_foreach_copy_",
    "aten::repeat_interleave",
    "aten::_pack_padded_sequence"};

bool takes_mixed(const std::string& name) {
  for (const std::string_view mixed : kMixed) {
    if (name == mixed) {
      return true;
    }
  }
  return false;
}

void check_same(c10::Device expected, const at::Tensor& tensor) {
  const bool number = tensor.is_cpu() && tensor.dim() == 0;
  TORCH_CHECK(
      number || tensor.device() == expected,
      "Expected all tensors to be on the same device, but found at least two "
      "devices, ",
      expected, " and ", tensor.device(), "!");
}

}  // namespace

c10::Device find_device(const c10::FunctionSchema& schema,
                        c10::ArrayRef<c10::IValue> arguments) {
  std::optional<c10::Device> device;
  for (const c10::IValue& argument : arguments) {
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      if (!device && tensor.is_cuda()) {
        device = tensor.device();
      }
    });
    if (!device && argument.isDevice() && argument.toDevice().is_cuda() &&
        argument.toDevice().has_index()) {
      device = argument.toDevice();
    }
  }
  if (!device) {
    return {c10::kCUDA, c10::cuda::current_device()};
  }
  if (!takes_mixed(schema.name())) {
    for (const c10::IValue& argument : arguments) {
      for_each_tensor(argument,
                      [&](const at::Tensor& t) { check_same(*device, t); });
    }
  }
  return *device;
}

}  // namespace simcuda
