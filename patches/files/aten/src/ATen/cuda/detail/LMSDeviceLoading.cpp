#include <ATen/cuda/detail/LMSDeviceLoading.h>

#include <ATen/cuda/detail/LMSAllocator.h>
#include <ATen/cuda/detail/LMSCudaCaptures.h>
#include <ATen/cuda/detail/LMSDevice.h>
#include <ATen/cuda/detail/LMSOperators.h>
#include <ATen/cuda/detail/LMSSettings.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace at::cuda::lms {
namespace {

// As Device::adopt would manage what the thread makes on the device.
bool would_be_managed(size_t bytes) {
  const auto& settings = Settings::get();
  return settings.enabled() && is_thread_enabled() && !is_capturing() &&
      !Allocator::get().routes_to_pools() && bytes > 0 &&
      bytes >= settings.min_bytes();
}

// Nor is there room on a stream whose work nobody can wait for later.
bool is_better_on_host(Device& device, size_t bytes, cudaStream_t stream) {
  {
    const Lock lock(device.mutex());
    auto& streams = device.world().streams();
    streams.meet_current();
    if (streams.is_external(stream)) {
      return false;
    }
  }
  return device.room().is_needed(
      {block_size_for(bytes), reinterpret_cast<uintptr_t>(stream)});
}

void fill(const HostPieces& pieces, const char* bytes, size_t count) {
  for (const HostRange& piece : pieces) {
    const size_t part = std::min(piece.bytes, count); // less in the last one
    std::memcpy(piece.begin, bytes, part);
    bytes += part;
    count -= part;
  }
}

// A storage that is managed from its beginning. Null, with the memory still the
// caller's, if LMS has been turned off meanwhile: nobody would bring the bytes
// back.
c10::Storage begin_on_host(
    Device& device,
    HostPieces& host,
    size_t bytes,
    cudaStream_t home) {
  const c10::Device where(c10::DeviceType::CUDA, device.index());
  c10::Storage storage(
      c10::Storage::use_byte_size_t(),
      bytes,
      c10::DataPtr(nullptr, where),
      &Allocator::get(),
      /*resizable=*/true);
  const Lock lock(device.mutex());
  if (!Settings::get().enabled()) {
    return {};
  }
  auto* record =
      new ManagedStorage(device, storage.unsafeGetStorageImpl(), home);
  device.pager().residence.begin_on_host(record, std::move(host));
  if (Trace* trace = Trace::of(device.index())) {
    trace->add_alloc(*record);
  }
  return storage;
}

at::Tensor tensor_like(const at::Tensor& source, c10::Storage storage) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage),
      c10::DispatchKeySet(c10::DispatchKey::CUDA),
      source.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(
      source.sizes(), source.strides());
  return tensor;
}

// It has left its device, or leaves it now. False if it cannot.
bool evict_to_host(ManagedStorage* record) {
  Device& device = record->device;
  HostMemory::Wait wait(/*is_allowed=*/true);
  do {
    const Lock lock(device.mutex());
    if (record->state == ManagedStorage::State::kResident &&
        record->evictable && !device.recipes().is_kept(*record)) {
      (void)device.pager().residence.page_out(record, wait, std::nullopt);
    }
    if (record->is_on_host()) {
      return true;
    }
  } while (device.world().finish(wait));
  return false;
}

// Empty if it is not to be had.
HostPieces take_copy(
    ManagedStorage* record,
    const c10::Storage& storage,
    int64_t references,
    Event& ready) {
  Device& device = record->device;
  const Lock lock(device.mutex());
  return static_cast<int64_t>(storage.use_count()) != references ||
          device.recipes().is_kept(*record)
      ? HostPieces()
      : device.pager().residence.take_copy(record, ready);
}

} // namespace

std::optional<at::Tensor> load_to_host(
    const at::Tensor& source,
    c10::DeviceIndex index) {
  TORCH_CHECK_VALUE(
      source.is_cpu() && source.is_non_overlapping_and_dense() &&
          !source.is_conj() && !source.is_neg(),
      "lms::load_to_host: the tensor has to be on the host, without gaps, and "
      "its bytes have to be what it shows.");
  const size_t bytes = source.nbytes();
  if (!would_be_managed(bytes)) {
    return std::nullopt;
  }
  c10::cuda::CUDAGuard on_device(index);
  Device& device = Device::get(index);
  cudaStream_t home = c10::cuda::getCurrentCUDAStream(index).stream();
  if (!is_better_on_host(device, bytes, home)) {
    return std::nullopt;
  }
  HostPieces host = device.pager().allocate_on_host(bytes);
  if (host.empty()) {
    return std::nullopt;
  }
  fill(host, static_cast<const char*>(source.const_data_ptr()), bytes);
  c10::Storage storage = begin_on_host(device, host, bytes, home);
  if (!storage) {
    const Lock lock(device.mutex());
    device.world().free_on_host(std::move(host), nullptr);
    return std::nullopt;
  }
  return tensor_like(source, std::move(storage));
}

std::optional<at::Tensor> move_to_device(
    const c10::Storage& storage,
    int64_t references,
    c10::DeviceIndex index) {
  ManagedStorage* record = record_of(storage);
  if (!record || record->held || record->device.index() == index ||
      !would_be_managed(storage.nbytes()) || !evict_to_host(record)) {
    return std::nullopt;
  }
  Event ready;
  HostPieces host = take_copy(record, storage, references, ready);
  if (host.empty()) {
    return std::nullopt;
  }
  // The other device has its own books, in which the copy is complete.
  const bool is_complete = !ready || record->device.world().wait_on_host(ready);
  c10::cuda::CUDAGuard on_device(index);
  c10::Storage moved = is_complete
      ? begin_on_host(
            Device::get(index),
            host,
            storage.nbytes(),
            c10::cuda::getCurrentCUDAStream(index).stream())
      : c10::Storage();
  if (!moved) {
    const Lock lock(record->device.mutex());
    record->host = std::move(host);
    record->write_back = std::move(ready);
    return std::nullopt;
  }
  auto bytes = at::detail::make_tensor<c10::TensorImpl>(
      std::move(moved),
      c10::DispatchKeySet(c10::DispatchKey::CUDA),
      caffe2::TypeMeta::Make<uint8_t>());
  bytes.unsafeGetTensorImpl()->set_sizes_contiguous(
      {static_cast<int64_t>(storage.nbytes())});
  return bytes;
}

} // namespace at::cuda::lms
