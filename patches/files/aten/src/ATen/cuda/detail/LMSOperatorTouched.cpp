#include <ATen/cuda/detail/LMSOperatorTouched.h>

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>

#include <utility>

namespace at::cuda::lms {
namespace {

using c10::IValue;

void gather(const c10::Storage& storage, bool writes, TouchedList& out) {
  if (storage && storage.device_type() == c10::DeviceType::CUDA) {
    out.push_back(
        {storage.device().index(), {storage.unsafeGetStorageImpl(), writes}});
  }
}

void gather(const at::Tensor& tensor, bool writes, TouchedList& out) {
  if (!tensor.defined() || !tensor.is_cuda()) {
    return;
  }
  const auto* impl = tensor.unsafeGetTensorImpl();
  if (tensor.has_storage()) {
    gather(impl->unsafe_storage(), writes, out);
  } else if (const auto* sparse = dynamic_cast<const SparseTensorImpl*>(impl)) {
    gather(sparse->indices(), writes, out);
    gather(sparse->values(), writes, out);
  } else if (
      const auto* rows = dynamic_cast<const SparseCsrTensorImpl*>(impl)) {
    gather(rows->compressed_indices(), writes, out);
    gather(rows->plain_indices(), writes, out);
    gather(rows->values(), writes, out);
  }
}

void gather(const IValue& value, bool writes, TouchedList& out) {
  if (value.isTensor()) {
    gather(value.toTensor(), writes, out);
  } else if (value.isList()) {
    for (const IValue& element : value.toListRef()) {
      if (!element.isTensor() && !element.isNone() && !element.isList()) {
        break; // a list of something else
      }
      gather(element, writes, out);
    }
  } else if (value.isStorage()) {
    gather(value.toStorage(), writes, out);
  }
}

// The fused optimizers declare that they write to gradients. They do where they
// divide them by a scale.
bool is_unscaled_gradient(
    const c10::FunctionSchema& schema,
    c10::ArrayRef<IValue> arguments,
    size_t index) {
  if (schema.arguments()[index].name() != "grads" ||
      !starts_with(schema.name(), "aten::_fused_")) {
    return false;
  }
  const auto scale = schema.argumentIndexWithName("grad_scale");
  return scale && arguments[static_cast<size_t>(*scale)].isNone();
}

} // namespace

bool is_updated_only(
    const OperatorTraits& traits,
    const c10::FunctionSchema& schema,
    c10::ArrayRef<IValue> arguments,
    size_t index) {
  if (!traits.is_batch_norm ||
      !starts_with(schema.arguments()[index].name(), "running_")) {
    return false;
  }
  const auto training = schema.argumentIndexWithName("training");
  return training && arguments[static_cast<size_t>(*training)].toBool();
}

TouchedList touched_by_arguments(
    const OperatorTraits& traits,
    const c10::FunctionSchema& schema,
    c10::ArrayRef<IValue> values) {
  TouchedList touched;
  for (size_t i = 0; i < values.size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    const bool silently = traits.is_batch_norm
        ? is_updated_only(traits, schema, values, i)
        : !traits.declares_writes;
    const bool is_declared =
        alias && alias->isWrite() && !is_unscaled_gradient(schema, values, i);
    gather(values[i], silently || is_declared, touched);
  }
  return touched;
}

TouchedList touched_by_launch(
    c10::ArrayRef<at::Tensor> arguments,
    uint64_t written) {
  constexpr size_t kKnown = 64;
  TouchedList touched;
  for (size_t i = 0; i < arguments.size(); ++i) {
    gather(arguments[i], i >= kKnown || (written >> i & 1) != 0, touched);
  }
  return touched;
}

TouchedList touched_by_results(c10::ArrayRef<IValue> values) {
  TouchedList touched;
  for (const IValue& value : values) {
    gather(value, /*writes=*/true, touched);
  }
  return touched;
}

// Takes the storages of one device out of the list.
Accesses take_device(TouchedList& touched, c10::DeviceIndex device) {
  Accesses taken;
  TouchedList rest;
  for (const Touched& entry : touched) {
    if (entry.device == device) {
      taken.push_back(entry.access);
    } else {
      rest.push_back(entry);
    }
  }
  touched = std::move(rest);
  return taken;
}

PinsByDevice pin_arguments(
    const OperatorTraits& traits,
    const c10::FunctionSchema& schema,
    c10::ArrayRef<IValue> arguments,
    bool adopt) {
  return pin_touched(touched_by_arguments(traits, schema, arguments), adopt);
}

PinsByDevice pin_touched(TouchedList touched, bool adopt) {
  PinsByDevice pinned;
  try {
    while (!touched.empty()) {
      const auto index = touched.front().device;
      Device& device = Device::get(index);
      pinned.push_back({&device, {}});
      pinned.back().second =
          device.pin(take_device(touched, index), current_stream(index), adopt);
    }
  } catch (...) {
    unpin(pinned);
    throw;
  }
  return pinned;
}

void unpin(const PinsByDevice& pinned) noexcept {
  for (const auto& [device, pins] : pinned) {
    device->unpin(pins);
  }
}

} // namespace at::cuda::lms
