// CUDA runtime: devices and their properties.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>

#include "../simcuda.h"
#include "calls.h"
#include "capture.h"
#include "card.h"
#include "config.h"
#include "device.h"
#include "memory.h"
#include "shared_card.h"
#include "stream.h"
#include "visible.h"

namespace simcuda {
namespace {

thread_local int device_of_thread = 0;

// Of the card in timed mode. Otherwise compute capability 8.0: new enough for
// every attention kernel, and not one for which PyTorch prefers cuDNN's.
struct Kind {
  std::string name = "Simulated CUDA device";
  int major = 8;
  int minor = 0;
  int processors = 108;
};

const Kind& kind() {
  static const Kind* k =
      timed() ? new Kind{card().name + " (simulated)", card().major,
                         card().minor, card().processors}
              : new Kind;
  return *k;
}

int attribute(cudaDeviceAttr attribute) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      return kind().major;
    case cudaDevAttrComputeCapabilityMinor:
      return kind().minor;
    case cudaDevAttrMultiProcessorCount:
      return kind().processors;
    case cudaDevAttrWarpSize:
      return 32;
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY:
      return 1024;
    case cudaDevAttrMaxBlockDimZ:
      return 64;
    case cudaDevAttrMaxGridDimX:
      return 2147483647;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
      return 65535;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      return 2048;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      return 49152;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return 166912;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      return 167936;
    case cudaDevAttrMaxRegistersPerBlock:
      return 65536;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrAsyncEngineCount:
    case cudaDevAttrConcurrentKernels:
      return 1;
    default:
      return 0;
  }
}

// Processes that share the devices see the same numbers. One that has devices
// of its own cannot tell them from another's: they have none.
void set_uuid(cudaDeviceProp& p, int device) {
  if (shares_card()) {
    const uint64_t name = std::hash<std::string>()(config().shared);
    std::memcpy(p.uuid.bytes, &name, sizeof(name));
    p.uuid.bytes[15] = static_cast<char>('0' + physical_device(device));
  }
}

cudaDeviceProp properties(int device) {
  cudaDeviceProp p;
  std::memset(&p, 0, sizeof(p));
  std::snprintf(p.name, sizeof(p.name), "%s", kind().name.c_str());
  set_uuid(p, device);
  p.totalGlobalMem = config().capacity;
  p.sharedMemPerBlock = 49152;
  p.sharedMemPerBlockOptin = 166912;
  p.sharedMemPerMultiprocessor = 167936;
  p.regsPerBlock = 65536;
  p.regsPerMultiprocessor = 65536;
  p.warpSize = 32;
  p.maxThreadsPerBlock = 1024;
  constexpr int kBlock[] = {1024, 1024, 64};
  constexpr int kGrid[] = {2147483647, 65535, 65535};
  std::copy_n(kBlock, 3, p.maxThreadsDim);
  std::copy_n(kGrid, 3, p.maxGridSize);
  p.major = kind().major;
  p.minor = kind().minor;
  p.multiProcessorCount = kind().processors;
  p.maxThreadsPerMultiProcessor = 2048;
  p.maxBlocksPerMultiProcessor = 32;
  p.l2CacheSize = 40 << 20;
  p.memoryBusWidth = 5120;
  p.concurrentKernels = 1;
  p.asyncEngineCount = 2;
  p.unifiedAddressing = 1;
  p.pciBusID = physical_device(device) + 1;
  return p;
}

}  // namespace

int current_device() {
  return device_of_thread;
}

bool valid_device(int device) {
  return device >= 0 && device < visible_devices();
}

int device_attribute(cudaDeviceAttr which) {
  return attribute(which);
}

}  // namespace simcuda

using namespace simcuda;

extern "C" {

SIMCUDA_API cudaError_t cudaGetDeviceCount(int* count) {
  SIMCUDA_ENTER("cudaGetDeviceCount", cudaErrorUnknown);
  *count = visible_devices();
  return report(*count == 0 ? cudaErrorNoDevice : cudaSuccess);
}

SIMCUDA_API cudaError_t cudaGetDevice(int* device) {
  SIMCUDA_ENTER_THREAD("cudaGetDevice", cudaErrorUnknown);
  *device = current_device();
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaSetDevice(int device) {
  SIMCUDA_ENTER_THREAD("cudaSetDevice", cudaErrorUnknown);
  if (!valid_device(device)) {
    return report(cudaErrorInvalidDevice);
  }
  device_of_thread = device;
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop,
                                                int device) {
  SIMCUDA_ENTER("cudaGetDeviceProperties", cudaErrorUnknown);
  if (!valid_device(device)) {
    return report(cudaErrorInvalidDevice);
  }
  *prop = properties(device);
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attr,
                                               int device) {
  SIMCUDA_ENTER("cudaDeviceGetAttribute", cudaErrorUnknown);
  if (!valid_device(device)) {
    return report(cudaErrorInvalidDevice);
  }
  *value = attribute(attr);
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaDeviceGetPCIBusId(char* id, int size, int device) {
  SIMCUDA_ENTER("cudaDeviceGetPCIBusId", cudaErrorUnknown);
  if (!valid_device(device)) {
    return report(cudaErrorInvalidDevice);
  }
  std::snprintf(id, static_cast<size_t>(size), "0000:%02X:00.0",
                physical_device(device) + 1);
  return cudaSuccess;
}

// Peers have no access: with it, PyTorch would launch kernels for strided
// copies between devices.
SIMCUDA_API cudaError_t cudaDeviceCanAccessPeer(int* can, int /*device*/,
                                                int /*peer*/) {
  SIMCUDA_ENTER("cudaDeviceCanAccessPeer", cudaErrorUnknown);
  *can = 0;
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaDeviceEnablePeerAccess(int /*peer*/,
                                                   unsigned /*flags*/) {
  return not_simulated("cudaDeviceEnablePeerAccess");
}

SIMCUDA_API cudaError_t cudaDeviceGetStreamPriorityRange(int* least,
                                                         int* greatest) {
  SIMCUDA_ENTER("cudaDeviceGetStreamPriorityRange", cudaErrorUnknown);
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaDeviceSynchronize() {
  SIMCUDA_ENTER("cudaDeviceSynchronize", cudaErrorUnknown);
  if (const cudaError_t illegal = check_wait(current_device())) {
    return report(illegal);
  }
  synchronize(current_device());
  return report(sticky());
}

SIMCUDA_API cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaProfilerStart() {
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaProfilerStop() {
  return cudaSuccess;
}
}
