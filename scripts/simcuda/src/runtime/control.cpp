// The simulation's own functions, see simcuda.h.
#include "../simcuda.h"

#include "calls.h"
#include "capture.h"
#include "config.h"
#include "copy.h"
#include "device.h"
#include "launches.h"
#include "memory.h"
#include "stream.h"

using namespace simcuda;

namespace {

struct OwnedTask {
  explicit OwnedTask(SimcudaTask t) : task(t) {}
  OwnedTask(const OwnedTask&) = delete;
  OwnedTask& operator=(const OwnedTask&) = delete;
  ~OwnedTask() {
    task.destroy(task.context);
  }

  SimcudaTask task;
};

}  // namespace

extern "C" {

SIMCUDA_API cudaError_t simcudaLaunch(cudaStream_t handle, int device,
                                      SimcudaTask task) {
  auto owned = std::make_shared<OwnedTask>(task);
  const auto stream = find_stream(handle, device);
  if (!stream) {
    return cudaErrorInvalidResourceHandle;
  }
  if (const cudaError_t illegal = check_launch(*stream)) {
    return illegal;
  }
  stream->enqueue(
      {TaskKind::Kernel, [owned] { owned->task.run(owned->task.context); }});
  return sticky();
}

SIMCUDA_API cudaError_t simcudaDrain(cudaStream_t handle, int device) {
  if (forked()) {
    return cudaErrorInitializationError;
  }
  const auto stream = find_stream(handle, device);
  if (!stream) {
    return cudaErrorInvalidResourceHandle;
  }
  if (const cudaError_t illegal = check_not_captured(*stream)) {
    return illegal;
  }
  stream->tail().wait();
  return sticky();
}

SIMCUDA_API void simcudaPoison(void* address, size_t bytes, cudaStream_t handle,
                               int device) {
  const auto stream = find_stream(handle, device);
  if (stream && !forked()) {
    stream->enqueue({TaskKind::Kernel, [address, bytes] {
                       fill_pattern(address, bytes, kFreed);
                     }});
  }
}

SIMCUDA_API int simcudaIsCapturing(cudaStream_t handle, int device) {
  const auto stream = find_stream(handle, device);
  CaptureInfo info{};
  return stream && find_capture(*stream, info) == cudaSuccess &&
                 info.status != cudaStreamCaptureStatusNone
             ? 1
             : 0;
}

SIMCUDA_API int simcudaIsAsync() {
  return config().kernels == Kernels::Async ? 1 : 0;
}

SIMCUDA_API int simcudaIsTimed() {
  return timed() ? 1 : 0;
}

SIMCUDA_API int simcudaPoisonLevel() {
  return config().poison;
}

SIMCUDA_API int simcudaGetStats(int device, SimcudaStats* stats) {
  if (!valid_device(device)) {
    return -1;
  }
  const Usage memory = device_usage(device);
  const Usage page_locked = page_locked_usage();
  const Copied copied = copied_bytes(device);
  *stats = SimcudaStats{config().capacity,     memory.bytes,
                        memory.peak,           copied.host_to_device,
                        copied.device_to_host, page_locked.bytes,
                        page_locked.peak,      unsimulated_launches()};
  return 0;
}

SIMCUDA_API void simcudaResetPeak() {
  reset_peaks();
}

SIMCUDA_API void simcudaFinish() {
  if (!forked()) {
    synchronize(-1);
  }
}
}
