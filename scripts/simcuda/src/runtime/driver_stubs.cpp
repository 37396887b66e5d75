// Driver functions that libraries of PyTorch ask for by name, and refuse to
// load without, but that are not simulated. Declared without their arguments,
// which a caller that gets CUDA_ERROR_NOT_SUPPORTED cannot notice.
#include "../simcuda.h"

#define NOT_SIMULATED(name) \
  SIMCUDA_API int name() {  \
    return 801;             \
  }

extern "C" {

NOT_SIMULATED(cuCtxFromGreenCtx)
NOT_SIMULATED(cuCtxGetLimit)
NOT_SIMULATED(cuCtxPopCurrent)
NOT_SIMULATED(cuCtxPushCurrent)
NOT_SIMULATED(cuCtxSetLimit)
NOT_SIMULATED(cuDevResourceGenerateDesc)
NOT_SIMULATED(cuDevSmResourceSplitByCount)
NOT_SIMULATED(cuDeviceGetDevResource)
NOT_SIMULATED(cuDevicePrimaryCtxRetain)
NOT_SIMULATED(cuGreenCtxCreate)
NOT_SIMULATED(cuGreenCtxDestroy)
NOT_SIMULATED(cuGreenCtxStreamCreate)
NOT_SIMULATED(cuLaunchCooperativeKernel)
NOT_SIMULATED(cuLinkAddData_v2)
NOT_SIMULATED(cuLinkComplete)
NOT_SIMULATED(cuLinkCreate_v2)
NOT_SIMULATED(cuMemExportToShareableHandle)
NOT_SIMULATED(cuMemGetAddressRange)
NOT_SIMULATED(cuMemGetAllocationPropertiesFromHandle)
NOT_SIMULATED(cuMemImportFromShareableHandle)
NOT_SIMULATED(cuMemRetainAllocationHandle)
NOT_SIMULATED(cuMemsetD32Async)
NOT_SIMULATED(cuModuleLoadDataEx)
NOT_SIMULATED(cuMulticastAddDevice)
NOT_SIMULATED(cuMulticastBindMem)
NOT_SIMULATED(cuMulticastCreate)
NOT_SIMULATED(cuMulticastUnbind)
NOT_SIMULATED(cuOccupancyMaxActiveBlocksPerMultiprocessor)
NOT_SIMULATED(cuStreamWriteValue32)
NOT_SIMULATED(cuTensorMapEncodeTiled)
}
