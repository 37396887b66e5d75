// CUDA runtime: memory and events that processes share.
#include <cuda_runtime_api.h>

#include <cstring>
#include <exception>

#include "../simcuda.h"
#include "calls.h"
#include "config.h"
#include "event.h"
#include "ipc.h"
#include "memory.h"

using namespace simcuda;

namespace {

template <typename Handle>
void put(Handle* handle, const SharedName& name) {
  static_assert(sizeof(name) <= sizeof(*handle));
  std::memcpy(handle, &name, sizeof(name));
}

template <typename Handle>
SharedName name_in(const Handle& handle) {
  SharedName name{};
  std::memcpy(&name, &handle, sizeof(name));
  return name;
}

}  // namespace

extern "C" {

SIMCUDA_API cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle,
                                            void* address) {
  SIMCUDA_ENTER("cudaIpcGetMemHandle", cudaErrorMemoryAllocation);
  if (timed()) {
    return not_simulated("cudaIpcGetMemHandle");
  }
  const Range range = find_range(address);
  if (range.place != Place::Device || range.mapped) {
    return report(cudaErrorInvalidValue);
  }
  try {
    put(handle, share_device(reinterpret_cast<void*>(range.base), range.bytes,
                             range.device));
  } catch (const std::exception&) {
    return report(cudaErrorMemoryAllocation);
  }
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaIpcOpenMemHandle(void** address,
                                             cudaIpcMemHandle_t handle,
                                             unsigned /*flags*/) {
  SIMCUDA_ENTER("cudaIpcOpenMemHandle", cudaErrorMapBufferObjectFailed);
  try {
    *address = open_shared(name_in(handle));
  } catch (const std::exception&) {
    return report(cudaErrorMapBufferObjectFailed);
  }
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaIpcCloseMemHandle(void* address) {
  SIMCUDA_ENTER("cudaIpcCloseMemHandle", cudaErrorUnknown);
  synchronize(owner(address));
  return report(close_shared(address) ? cudaSuccess : cudaErrorInvalidValue);
}

SIMCUDA_API cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle,
                                              cudaEvent_t event_handle) {
  SIMCUDA_ENTER("cudaIpcGetEventHandle", cudaErrorMemoryAllocation);
  const auto event = find_event(event_handle);
  const auto name = event ? event->shared_name() : std::nullopt;
  if (!name) {
    return report(cudaErrorInvalidResourceHandle);
  }
  put(handle, *name);
  event->mark().demand();  // the other process cannot
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event,
                                               cudaIpcEventHandle_t handle) {
  SIMCUDA_ENTER("cudaIpcOpenEventHandle", cudaErrorMapBufferObjectFailed);
  try {
    *event = open_event(name_in(handle));
  } catch (const std::exception&) {
    return report(cudaErrorMapBufferObjectFailed);
  }
  return cudaSuccess;
}
}
