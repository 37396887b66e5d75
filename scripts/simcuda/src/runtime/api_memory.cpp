// CUDA runtime: memory and copies.
#include <cuda_runtime_api.h>

#include <cstring>

#include "../simcuda.h"
#include "calls.h"
#include "capture.h"
#include "card.h"
#include "cleared_pages.h"
#include "config.h"
#include "copy.h"
#include "device.h"
#include "ipc.h"
#include "memory.h"
#include "shared_card.h"
#include "stream.h"
#include "timing.h"

using namespace simcuda;

namespace {

// Of memory that was not there before, the kernel clears the pages. Who uses
// what a thread in the background has page-locked has waited for it.
void spend_page_locking(const void* address, size_t bytes) {
  if (!timed()) {
    return;
  }
  const size_t cleared = take_cleared(address, bytes);
  timing::spend(card().page_locking(bytes) + card().clearing(bytes - cleared));
  if (!timing::in_program()) {
    set_ready(address, timing::thread_number(), timing::worked_until());
  }
  timing::note_page_locked(address, bytes);
}

cudaError_t copy_on(void* to, const void* from, size_t bytes,
                    cudaMemcpyKind kind, cudaStream_t handle) {
  const auto stream = find_stream(handle, current_device());
  if (!stream) {
    return cudaErrorInvalidResourceHandle;
  }
  const cudaError_t illegal = check_launch(*stream);
  return illegal ? illegal : copy(to, from, bytes, kind, *stream);
}

// As the above, having waited for it.
cudaError_t copy_now(void* to, const void* from, size_t bytes,
                     cudaMemcpyKind kind) {
  const cudaError_t error = copy_on(to, from, bytes, kind, nullptr);
  if (error != cudaSuccess) {
    return error;
  }
  find_stream(nullptr, current_device())->tail().wait();
  return cudaSuccess;
}

cudaError_t set_on(void* address, int value, size_t bytes,
                   cudaStream_t handle) {
  const auto stream = find_stream(handle, current_device());
  if (!stream) {
    return cudaErrorInvalidResourceHandle;
  }
  if (const cudaError_t illegal = check_launch(*stream)) {
    return illegal;
  }
  const Range range = find_range(address, bytes);
  if (bytes == 0) {
    return cudaSuccess;
  }
  if (range.place == Place::Pageable || !range.holds(address, bytes)) {
    return cudaErrorInvalidValue;
  }
  stream->enqueue(
      {TaskKind::Kernel,
       [address, value, bytes] { std::memset(address, value, bytes); },
       traffic_cost(bytes, "fill")});
  return cudaSuccess;
}

}  // namespace

extern "C" {

SIMCUDA_API cudaError_t cudaMalloc(void** address, size_t bytes) {
  SIMCUDA_ENTER_UNSAFE("cudaMalloc", cudaErrorMemoryAllocation);
  *address = nullptr;
  if (bytes == 0) {
    return cudaSuccess;
  }
  *address = allocate_device(current_device(), bytes);
  return report(*address ? cudaSuccess : cudaErrorMemoryAllocation);
}

SIMCUDA_API cudaError_t cudaFree(void* address) {
  SIMCUDA_ENTER_UNSAFE("cudaFree", cudaErrorUnknown);
  if (address == nullptr) {
    return cudaSuccess;
  }
  synchronize(owner(address));
  forget_shared(address);
  return report(free_device(address) ? cudaSuccess : cudaErrorInvalidValue);
}

// Stream-ordered allocation: the memory is there at once, and when it is not,
// after what the stream has still to free.
SIMCUDA_API cudaError_t cudaMallocAsync(void** address, size_t bytes,
                                        cudaStream_t handle) {
  SIMCUDA_ENTER("cudaMallocAsync", cudaErrorMemoryAllocation);
  const auto stream = find_stream(handle, current_device());
  if (!stream) {
    return report(cudaErrorInvalidResourceHandle);
  }
  if (const cudaError_t illegal = check_not_captured(*stream)) {
    return report(illegal);  // a graph's own memory is not simulated
  }
  *address = allocate_device(stream->device, bytes);
  if (*address == nullptr) {
    stream->tail().wait();
    *address = allocate_device(stream->device, bytes);
  }
  return report(*address ? cudaSuccess : cudaErrorMemoryAllocation);
}

SIMCUDA_API cudaError_t cudaFreeAsync(void* address, cudaStream_t handle) {
  SIMCUDA_ENTER("cudaFreeAsync", cudaErrorUnknown);
  const auto stream = find_stream(handle, current_device());
  if (!stream || owner(address) < 0) {
    return report(cudaErrorInvalidValue);
  }
  if (const cudaError_t illegal = check_not_captured(*stream)) {
    return report(illegal);
  }
  stream->enqueue({TaskKind::Control, [address] { free_device(address); }});
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  SIMCUDA_ENTER("cudaMemGetInfo", cudaErrorUnknown);
  *total = config().capacity;
  const int device = current_device();
  *free = *total - device_usage(device).bytes - taken_by_others(device);
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaHostAlloc(void** address, size_t bytes,
                                      unsigned /*flags*/) {
  const timing::HoldsDriver holds_driver;
  SIMCUDA_ENTER_UNSAFE("cudaHostAlloc", cudaErrorMemoryAllocation);
  *address = allocate_page_locked(bytes);
  if (*address == nullptr) {
    return report(cudaErrorMemoryAllocation);
  }
  spend_page_locking(*address, bytes);
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaMallocHost(void** address, size_t bytes) {
  return cudaHostAlloc(address, bytes, 0);
}

SIMCUDA_API cudaError_t cudaFreeHost(void* address) {
  const timing::HoldsDriver holds_driver;
  SIMCUDA_ENTER_UNSAFE("cudaFreeHost", cudaErrorUnknown);
  if (address == nullptr) {
    return cudaSuccess;
  }
  synchronize(-1);
  return report(free_page_locked(address) ? cudaSuccess
                                          : cudaErrorInvalidValue);
}

SIMCUDA_API cudaError_t cudaHostRegister(void* address, size_t bytes,
                                         unsigned /*flags*/) {
  const timing::HoldsDriver holds_driver;
  SIMCUDA_ENTER_UNSAFE("cudaHostRegister", cudaErrorMemoryAllocation);
  if (!register_page_locked(address, bytes)) {
    return report(cudaErrorHostMemoryAlreadyRegistered);
  }
  spend_page_locking(address, bytes);
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaHostUnregister(void* address) {
  const timing::HoldsDriver holds_driver;
  SIMCUDA_ENTER_UNSAFE("cudaHostUnregister", cudaErrorUnknown);
  synchronize(-1);
  return report(unregister_page_locked(address)
                    ? cudaSuccess
                    : cudaErrorHostMemoryNotRegistered);
}

SIMCUDA_API cudaError_t cudaHostGetDevicePointer(void** device, void* host,
                                                 unsigned /*flags*/) {
  SIMCUDA_ENTER("cudaHostGetDevicePointer", cudaErrorUnknown);
  *device = host;
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaPointerGetAttributes(
    cudaPointerAttributes* attributes, const void* address) {
  SIMCUDA_ENTER("cudaPointerGetAttributes", cudaErrorUnknown);
  std::memset(attributes, 0, sizeof(*attributes));
  const Range range = find_range(address);
  auto* pointer = const_cast<void*>(address);
  attributes->device = -1;
  switch (range.place) {
    case Place::Pageable:
      attributes->type = cudaMemoryTypeUnregistered;
      attributes->hostPointer = pointer;
      break;
    case Place::PageLocked:
      attributes->type = cudaMemoryTypeHost;
      attributes->device = current_device();
      attributes->hostPointer = pointer;
      attributes->devicePointer = pointer;
      break;
    case Place::Device:
      attributes->type = cudaMemoryTypeDevice;
      attributes->device = range.device;
      attributes->devicePointer = pointer;
      break;
  }
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes,
                                   cudaMemcpyKind kind) {
  SIMCUDA_ENTER_UNSAFE("cudaMemcpy", cudaErrorUnknown);
  return report(copy_now(to, from, bytes, kind));
}

SIMCUDA_API cudaError_t cudaMemcpyAsync(void* to, const void* from,
                                        size_t bytes, cudaMemcpyKind kind,
                                        cudaStream_t stream) {
  SIMCUDA_ENTER("cudaMemcpyAsync", cudaErrorUnknown);
  return report(copy_on(to, from, bytes, kind, stream));
}

SIMCUDA_API cudaError_t cudaMemcpyPeerAsync(void* to, int /*to_device*/,
                                            const void* from,
                                            int /*from_device*/, size_t bytes,
                                            cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}

SIMCUDA_API cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch,
                                          const void* from, size_t from_pitch,
                                          size_t width, size_t height,
                                          cudaMemcpyKind kind,
                                          cudaStream_t stream) {
  SIMCUDA_ENTER("cudaMemcpyAsync", cudaErrorUnknown);
  for (size_t row = 0; row < height; ++row) {
    auto* row_to = static_cast<char*>(to) + row * to_pitch;
    const auto* row_from = static_cast<const char*>(from) + row * from_pitch;
    const cudaError_t error = copy_on(row_to, row_from, width, kind, stream);
    if (error != cudaSuccess) {
      return report(error);
    }
  }
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaMemset(void* address, int value, size_t bytes) {
  SIMCUDA_ENTER_UNSAFE("cudaMemset", cudaErrorUnknown);
  return report(set_on(address, value, bytes, nullptr));
}

SIMCUDA_API cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes,
                                        cudaStream_t stream) {
  SIMCUDA_ENTER("cudaMemsetAsync", cudaErrorUnknown);
  return report(set_on(address, value, bytes, stream));
}

SIMCUDA_API cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t,
                                           size_t, cudaMemcpyKind) {
  return not_simulated("cudaMemcpyToSymbol");
}

SIMCUDA_API cudaError_t cudaGetSymbolAddress(void**, const void*) {
  return not_simulated("cudaGetSymbolAddress");
}
}
