// libnvidia-ml.so.1: PyTorch counts devices with it before CUDA starts, and
// lists the processes on a device in an out-of-memory message. It reads the
// number of devices itself, so that it can be opened without the CUDA
// simulation.
#include <cstdlib>

#define NVML_API extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kSuccess = 0;
constexpr int kNotSupported = 3;

unsigned devices() {
  const char* text = std::getenv("SIMCUDA_DEVICES");
  const int count = text != nullptr ? std::atoi(text) : 1;
  return count > 0 ? static_cast<unsigned>(count) : 1;
}

}  // namespace

NVML_API int nvmlInit() {
  return kSuccess;
}

NVML_API int nvmlInit_v2() {
  return kSuccess;
}

NVML_API int nvmlShutdown() {
  return kSuccess;
}

NVML_API int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = devices();
  return kSuccess;
}

NVML_API int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) {
  static int the_device;
  *device = &the_device;
  return kSuccess;
}

NVML_API int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count,
                                                  void*) {
  *count = 0;
  return kSuccess;
}

NVML_API int nvmlSystemGetCudaDriverVersion_v2(int*) {
  return kNotSupported;
}

NVML_API int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, void*) {
  return kNotSupported;
}

NVML_API int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) {
  return kNotSupported;
}

NVML_API int nvmlDeviceGetGpuFabricInfoV(void*, void*) {
  return kNotSupported;
}
