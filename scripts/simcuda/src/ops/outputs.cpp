#include "outputs.h"

#include <ATen/cuda/EmptyTensor.h>
#include <ATen/ops/resize.h>
#include <c10/cuda/CUDAException.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "../simcuda.h"
#include "alias.h"
#include "values.h"

namespace simcuda {
namespace {

void copy_bytes(const at::Tensor& to, const at::Tensor& from) {
  if (from.numel() > 0) {
    std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), extent(from));
  }
}

// Tensors of a list one by one, as for_each_tensor; both have the same shape.
std::vector<at::Tensor> tensors_of(const c10::IValue& value) {
  std::vector<at::Tensor> all;
  for_each_tensor(value, [&](const at::Tensor& t) { all.push_back(t); });
  return all;
}

}  // namespace

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

bool answers_host(const c10::FunctionSchema& schema) {
  const auto& results = schema.returns();
  return std::any_of(results.begin(), results.end(), [](const auto& result) {
    const auto& type = result.type();
    return type->isSubtypeOf(*c10::BoolType::get()) ||
           (type->isSubtypeOf(*c10::NumberType::get()) &&
            type->kind() != c10::TypeKind::IntType);
  });
}

const c10::IValue* find_aliased(const c10::FunctionSchema& schema,
                                size_t result,
                                c10::ArrayRef<c10::IValue> arguments) {
  const c10::AliasInfo* wanted = schema.returns()[result].alias_info();
  if (wanted == nullptr) {
    return nullptr;
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* info = schema.arguments()[i].alias_info();
    if (info != nullptr && info->beforeSets() == wanted->beforeSets()) {
      return &arguments[i];
    }
  }
  return nullptr;
}

at::Tensor empty_like_on(const at::Tensor& tensor, c10::Device device) {
  at::Tensor made(at::detail::empty_strided_cuda(
      tensor.sizes(), tensor.strides(), tensor.scalar_type(), device));
  made._set_conj(tensor.is_conj());
  made._set_neg(tensor.is_neg());
  return made;
}

c10::IValue to_device(const c10::IValue& computed,
                      const c10::cuda::CUDAStream& stream) {
  return map_tensors(computed, [&](const at::Tensor& from) {
    at::Tensor to = empty_like_on(from, stream.device());
    // The allocator may have queued work for the block that it gave.
    C10_CUDA_CHECK(simcudaDrain(stream.stream(), stream.device_index()));
    copy_bytes(to, from);
    return to;
  });
}

void give_shape(const at::Tensor& to, const at::Tensor& from) {
  // As a row, for strides that leave holes.
  const auto bytes = static_cast<int64_t>(extent(from));
  to.resize_({bytes / static_cast<int64_t>(from.itemsize())});
  to.unsafeGetTensorImpl()->set_sizes_and_strides(from.sizes(), from.strides());
}

void settle_resized(const c10::IValue& argument, const c10::IValue& alias,
                    const c10::cuda::CUDAStream& stream) {
  const auto tensors = tensors_of(argument);
  const auto aliases = tensors_of(alias);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& to = tensors[i];
    const at::Tensor& from = aliases[i];
    if (!to.is_cuda() || !was_resized(to, from)) {
      continue;
    }
    if (to.sizes() != from.sizes() || to.strides() != from.strides()) {
      give_shape(to, from);
    }
    // resize_ queued a copy of the old contents, which must not come last.
    C10_CUDA_CHECK(simcudaDrain(stream.stream(), stream.device_index()));
    if (to.storage().data() != from.storage().data()) {
      copy_bytes(to, from);
    }
  }
}

}  // namespace simcuda
