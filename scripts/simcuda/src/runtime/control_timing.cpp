// The functions of simcuda.h that serve timed mode.
#include "../simcuda.h"

#include "calls.h"
#include "card.h"
#include "config.h"
#include "device.h"
#include "stream.h"
#include "timing.h"
#include "zeros.h"

using namespace simcuda;

extern "C" {

SIMCUDA_API void simcudaSpendOperation() {
  timing::join_program();
  timing::spend(card().operation());
}

SIMCUDA_API cudaError_t simcudaTime(cudaStream_t handle, int device,
                                    const SimcudaKernel* kernel) {
  const OwnTime own_time;
  const auto stream = find_stream(handle, device);
  if (!stream) {
    return cudaErrorInvalidResourceHandle;
  }
  timing::wait_for_driver();
  if (kernel->launches > 0) {
    stream->enqueue({TaskKind::Kernel,
                     {},
                     {Part::Compute, card().kernel(*kernel), kernel->name}});
  }
  return sticky();
}

SIMCUDA_API void simcudaSpendHostTraffic(double bytes) {
  timing::spend(card().host_traffic(bytes));
}

SIMCUDA_API void simcudaWriteZeros(void* address, size_t bytes) {
  write_zeros(address, bytes);
}

SIMCUDA_API int simcudaBeginHostWork() {
  if (!timed()) {
    return -1;
  }
  timing::begin_host_work();
  return 0;
}

SIMCUDA_API uint64_t simcudaEndHostWork() {
  return timing::end_host_work();
}

SIMCUDA_API void simcudaWaitForHostWork(uint64_t number) {
  timing::wait_for_host(number);
}

SIMCUDA_API int64_t simcudaHostTime() {
  return timed() ? timing::program_now() : -1;
}

SIMCUDA_API int64_t simcudaDeviceTime(int device) {
  return timed() && valid_device(device) ? timing::device_done(device) : -1;
}

SIMCUDA_API int64_t simcudaBusyTime(int device, int part) {
  return timed() && valid_device(device)
             ? timing::busy(device, static_cast<Part>(part))
             : -1;
}

SIMCUDA_API int simcudaRecordTimeline(const char* path) {
  return timed() && timing::record_timeline(path) ? 0 : -1;
}
}
