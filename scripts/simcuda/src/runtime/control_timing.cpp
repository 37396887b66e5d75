// The functions of simcuda.h that serve timed mode.
#include "../simcuda.h"

#include <memory>
#include <utility>

#include "calls.h"
#include "card.h"
#include "config.h"
#include "device.h"
#include "stream.h"
#include "timing.h"
#include "zeros.h"

using namespace simcuda;

namespace {

class Encounter : public Meeting {
 public:
  explicit Encounter(const SimcudaCollective& what) : what_(what) {}
  Encounter(const Encounter&) = delete;
  Encounter& operator=(const Encounter&) = delete;
  ~Encounter() override {
    what_.destroy(what_.context);
  }
  Time meet(Time time) override {
    return what_.meet(what_.context, time);
  }

 private:
  const SimcudaCollective what_;
};

}  // namespace

extern "C" {

SIMCUDA_API void simcudaSpendOperation() {
  timing::begin_operator();
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

SIMCUDA_API cudaError_t simcudaTimeCollective(cudaStream_t handle, int device,
                                              const SimcudaCollective* what) {
  const OwnTime own_time;
  auto meeting = std::make_shared<Encounter>(*what);
  const auto stream = find_stream(handle, device);
  if (!stream) {
    return cudaErrorInvalidResourceHandle;
  }
  timing::wait_for_driver();
  timing::spend(card().operation());
  stream->enqueue(
      {TaskKind::Kernel,
       {},
       {Part::Collective, card().collective(what->bytes), what->name},
       std::move(meeting),
       what->communicator});
  return sticky();
}

SIMCUDA_API void simcudaSpendHostTraffic(double bytes) {
  timing::spend(card().host_traffic(bytes));
}

SIMCUDA_API void simcudaWriteZeros(void* address, size_t bytes) {
  write_zeros(address, bytes);
}

SIMCUDA_API void simcudaCopyHost(void* to, const void* from, size_t bytes) {
  copy_present(to, from, bytes);
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

SIMCUDA_API int simcudaStartLane(int device) {
  if (!timed() || !valid_device(device)) {
    return -1;
  }
  timing::start_lane(device);
  return 0;
}

SIMCUDA_API int simcudaStopLane(int device) {
  if (!timed() || !valid_device(device)) {
    return -1;
  }
  timing::stop_lane(device);
  return 0;
}

SIMCUDA_API int simcudaEnterLane(int device) {
  return timed() && valid_device(device) && timing::enter_lane(device) ? 0 : -1;
}

SIMCUDA_API void simcudaPauseLanes() {
  timing::pause_lanes();
}

SIMCUDA_API void simcudaResumeLanes() {
  timing::resume_lanes();
}

SIMCUDA_API void simcudaSetPatienceOfLanes(double seconds) {
  timing::set_patience_of_lanes(seconds);
}

SIMCUDA_API int simcudaMakeLock(int is_taken) {
  return timed() ? timing::make_lock(is_taken != 0) : -1;
}

SIMCUDA_API void simcudaAcquire(int lock) {
  timing::acquire(lock);
}

SIMCUDA_API int simcudaRelease(int lock) {
  return timing::release(lock) ? 0 : -1;
}
}
