// CUDA driver: virtual memory. As all of the driver it leaves the runtime's
// last error alone.
#include <cuda.h>

#include "../simcuda.h"
#include "calls.h"
#include "device.h"
#include "virtual_memory.h"

using namespace simcuda;

namespace {

constexpr size_t kGranularity = 2 << 20;  // bytes, as on every card

bool is_whole(size_t bytes) {
  return bytes > 0 && bytes % kGranularity == 0;
}

void* pointer(CUdeviceptr address) {
  return reinterpret_cast<void*>(address);
}

CUresult check(bool good) {
  return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

// As SIMCUDA_ENTER; the fault of a call is that there is no memory.
#define ENTER_DRIVER(name)                                                \
  static Function& entered = function(name, cudaErrorMemoryAllocation);   \
  if (const cudaError_t failed = enter(entered)) {                        \
    return failed == cudaErrorMemoryAllocation ? CUDA_ERROR_OUT_OF_MEMORY \
                                               : CUDA_ERROR_UNKNOWN;      \
  }

extern "C" {

SIMCUDA_API CUresult cuMemGetAllocationGranularity(
    size_t* granularity, const CUmemAllocationProp* /*properties*/,
    CUmemAllocationGranularity_flags /*option*/) {
  *granularity = kGranularity;
  return CUDA_SUCCESS;
}

SIMCUDA_API CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes,
                                         size_t /*alignment*/,
                                         CUdeviceptr /*wish*/,
                                         unsigned long long /*flags*/) {
  ENTER_DRIVER("cuMemAddressReserve")
  if (!is_whole(bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *address = reinterpret_cast<CUdeviceptr>(reserve_addresses(bytes));
  return *address != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIMCUDA_API CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  ENTER_DRIVER("cuMemAddressFree")
  return check(free_addresses(pointer(address), bytes));
}

SIMCUDA_API CUresult cuMemCreate(CUmemGenericAllocationHandle* handle,
                                 size_t bytes,
                                 const CUmemAllocationProp* properties,
                                 unsigned long long /*flags*/) {
  ENTER_DRIVER("cuMemCreate")
  const int device = properties->location.id;
  if (!is_whole(bytes) || !valid_device(device) ||
      properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *handle = create_piece(device, bytes);
  return *handle != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIMCUDA_API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  ENTER_DRIVER("cuMemRelease")
  return check(release_piece(handle));
}

SIMCUDA_API CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                              CUmemGenericAllocationHandle handle,
                              unsigned long long /*flags*/) {
  ENTER_DRIVER("cuMemMap")
  return check(offset == 0 && map_piece(pointer(address), bytes, handle));
}

SIMCUDA_API CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  ENTER_DRIVER("cuMemUnmap")
  return check(unmap_pieces(pointer(address), bytes));
}

// What is mapped can be used by its device at once; by no other.
SIMCUDA_API CUresult cuMemSetAccess(CUdeviceptr /*address*/, size_t /*bytes*/,
                                    const CUmemAccessDesc* access,
                                    size_t count) {
  ENTER_DRIVER("cuMemSetAccess")
  for (size_t i = 0; i < count; ++i) {
    if (!valid_device(access[i].location.id)) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
  }
  return CUDA_SUCCESS;
}
}
