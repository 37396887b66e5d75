#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/cuda/detail/LMSDevice.h>
#include <ATen/cuda/detail/LMSOperatorTraits.h>
#include <c10/cuda/CUDAStream.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace at::cuda::lms {

// A storage that an operator touches, and where it is.
struct Touched {
  c10::DeviceIndex device;
  Access access;
};
using TouchedList = c10::SmallVector<Touched, 8>;

// Batch norm updates its running statistics silently, in training; they have no
// part in its results then. Whether the argument with the index is one of them.
bool is_updated_only(
    const OperatorTraits& traits,
    const c10::FunctionSchema& schema,
    c10::ArrayRef<c10::IValue> arguments,
    size_t index);

TouchedList touched_by_arguments(
    const OperatorTraits& traits,
    const c10::FunctionSchema& schema,
    c10::ArrayRef<c10::IValue> arguments);
TouchedList touched_by_results(c10::ArrayRef<c10::IValue> results);
// `written`: a bit for each argument; those beyond the 64th are taken as
// written.
TouchedList touched_by_launch(
    c10::ArrayRef<at::Tensor> arguments,
    uint64_t written);

// Takes the storages of one device out of the list.
Accesses take_device(TouchedList& touched, c10::DeviceIndex device);

inline cudaStream_t current_stream(c10::DeviceIndex device) {
  return c10::cuda::getCurrentCUDAStream(device).stream();
}

// Pins the storages for the current streams, see Device::pin. If it throws no
// pin is left behind.
PinsByDevice pin_touched(TouchedList touched, bool adopt);
// The same for those of an operator's arguments.
PinsByDevice pin_arguments(
    const OperatorTraits& traits,
    const c10::FunctionSchema& schema,
    c10::ArrayRef<c10::IValue> arguments,
    bool adopt);
void unpin(const PinsByDevice& pinned) noexcept;

} // namespace at::cuda::lms
