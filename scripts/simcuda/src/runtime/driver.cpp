// CUDA driver: the few functions that PyTorch calls. This library carries the
// driver's SONAME. None of them touches the runtime's last error: PyTorch would
// take it for the failure of its next call.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <string>

#include "../simcuda.h"
#include "device.h"
#include "visible.h"

using namespace simcuda;

namespace {

// Finds a driver function in this library only, never in a real driver.
void* find_symbol(const char* name) {
  static void* self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  return self == nullptr ? nullptr : dlsym(self, name);
}

cudaError_t entry_point(const char* name, void** function,
                        cudaDriverEntryPointQueryResult* status) {
  *function = find_symbol(name);
  if (status != nullptr) {
    *status = *function != nullptr ? cudaDriverEntryPointSuccess
                                   : cudaDriverEntryPointSymbolNotFound;
  }
  return cudaSuccess;
}

}  // namespace

extern "C" {

SIMCUDA_API cudaError_t cudaGetDriverEntryPointByVersion(
    const char* name, void** function, unsigned /*version*/,
    unsigned long long /*flags*/, cudaDriverEntryPointQueryResult* status) {
  return entry_point(name, function, status);
}

#if CUDART_VERSION < 13000
SIMCUDA_API cudaError_t cudaGetDriverEntryPoint(
    const char* name, void** function, unsigned long long /*flags*/,
    cudaDriverEntryPointQueryResult* status) {
  return entry_point(name, function, status);
}
#endif

SIMCUDA_API CUresult cuInit(unsigned) {
  return CUDA_SUCCESS;
}

SIMCUDA_API CUresult cuDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

SIMCUDA_API CUresult cuDeviceGetCount(int* count) {
  *count = visible_devices();
  return CUDA_SUCCESS;
}

SIMCUDA_API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return valid_device(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

// What the runtime says, by the same numbers. Beyond that nothing optional is
// offered: no fabric, no memory shared between processes.
SIMCUDA_API CUresult cuDeviceGetAttribute(int* value,
                                          CUdevice_attribute attribute,
                                          CUdevice device) {
  *value = device_attribute(static_cast<cudaDeviceAttr>(attribute));
  return valid_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

SIMCUDA_API CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_NOT_SUPPORTED
              ? "the simulated device does not have this driver function"
              : "error of the simulated driver";
  return CUDA_SUCCESS;
}

// A process that uses the simulation has every primary context.
SIMCUDA_API CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags,
                                                int* active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}

SIMCUDA_API CUresult cuCtxGetCurrent(CUcontext* context) {
  static int the_context;
  *context = reinterpret_cast<CUcontext>(&the_context);
  return CUDA_SUCCESS;
}

SIMCUDA_API CUresult cuCtxSetCurrent(CUcontext) {
  return CUDA_SUCCESS;
}

SIMCUDA_API CUresult cuCtxGetDevice(CUdevice* device) {
  *device = current_device();
  return CUDA_SUCCESS;
}

SIMCUDA_API CUresult cuStreamIsCapturing(CUstream stream,
                                         CUstreamCaptureStatus* status) {
  *status = simcudaIsCapturing(stream, current_device()) != 0
                ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
}
