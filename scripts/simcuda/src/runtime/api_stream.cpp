// CUDA runtime: streams, events and host functions.
#include <cuda_runtime_api.h>

#include "../simcuda.h"
#include "calls.h"
#include "capture.h"
#include "device.h"
#include "disk.h"
#include "event.h"
#include "stream.h"

using namespace simcuda;

namespace {

cudaError_t create(cudaStream_t* stream, unsigned flags, int priority) {
  SIMCUDA_ENTER("cudaStreamCreate", cudaErrorMemoryAllocation);
  *stream = create_stream(current_device(), flags, priority);
  return cudaSuccess;
}

cudaError_t create(cudaEvent_t* event, unsigned flags) {
  SIMCUDA_ENTER("cudaEventCreate", cudaErrorMemoryAllocation);
  *event = create_event(current_device(), flags);
  return cudaSuccess;
}

// A program that polls must see the end of what it polls for: asking lets
// delayed work run, as a card would in the meantime.
cudaError_t query(const Mark& mark) {
  if (mark.reached()) {
    return report(sticky());
  }
  mark.demand();
  return cudaErrorNotReady;  // not an error to be kept as the last one
}

}  // namespace

extern "C" {

SIMCUDA_API cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return create(stream, cudaStreamDefault, 0);
}

SIMCUDA_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream,
                                                  unsigned flags) {
  return create(stream, flags, 0);
}

SIMCUDA_API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream,
                                                     unsigned flags,
                                                     int priority) {
  return create(stream, flags, priority);
}

SIMCUDA_API cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  SIMCUDA_ENTER("cudaStreamDestroy", cudaErrorUnknown);
  return report(destroy_stream(stream) ? cudaSuccess
                                       : cudaErrorInvalidResourceHandle);
}

SIMCUDA_API cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* out) {
  SIMCUDA_ENTER("cudaStreamGetPriority", cudaErrorUnknown);
  const auto stream = find_stream(handle, current_device());
  if (!stream) {
    return report(cudaErrorInvalidResourceHandle);
  }
  *out = stream->priority;
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaStreamQuery(cudaStream_t handle) {
  SIMCUDA_ENTER("cudaStreamQuery", cudaErrorUnknown);
  const auto stream = find_stream(handle, current_device());
  if (!stream) {
    return report(cudaErrorInvalidResourceHandle);
  }
  const cudaError_t illegal = check_wait(*stream);
  return illegal ? report(illegal) : query(stream->tail());
}

SIMCUDA_API cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  SIMCUDA_ENTER("cudaStreamSynchronize", cudaErrorUnknown);
  const auto stream = find_stream(handle, current_device());
  if (!stream) {
    return report(cudaErrorInvalidResourceHandle);
  }
  if (const cudaError_t illegal = check_wait(*stream)) {
    return report(illegal);
  }
  stream->tail().wait();
  return report(sticky());
}

SIMCUDA_API cudaError_t cudaStreamWaitEvent(cudaStream_t handle,
                                            cudaEvent_t event_handle,
                                            unsigned /*flags*/) {
  SIMCUDA_ENTER("cudaStreamWaitEvent", cudaErrorUnknown);
  const auto stream = find_stream(handle, current_device());
  const auto event = find_event(event_handle);
  if (!stream || !event) {
    return report(cudaErrorInvalidResourceHandle);
  }
  bool is_done = false;
  if (const cudaError_t illegal = check_launch(*stream)) {
    return report(illegal);
  }
  const cudaError_t error = wait_in_capture(*stream, *event, is_done);
  if (!is_done) {
    stream->wait_for(event->mark());
  }
  return report(error);
}

SIMCUDA_API cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return create(event, cudaEventDefault);
}

SIMCUDA_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event,
                                                 unsigned flags) {
  return create(event, flags);
}

SIMCUDA_API cudaError_t cudaEventDestroy(cudaEvent_t event) {
  SIMCUDA_ENTER("cudaEventDestroy", cudaErrorUnknown);
  return report(destroy_event(event) ? cudaSuccess
                                     : cudaErrorInvalidResourceHandle);
}

SIMCUDA_API cudaError_t cudaEventRecordWithFlags(cudaEvent_t event_handle,
                                                 cudaStream_t handle,
                                                 unsigned /*flags*/) {
  SIMCUDA_ENTER("cudaEventRecord", cudaErrorUnknown);
  const auto stream = find_stream(handle, current_device());
  const auto event = find_event(event_handle);
  if (!stream || !event || stream->device != event->device) {
    return report(cudaErrorInvalidResourceHandle);
  }
  if (const cudaError_t illegal = check_launch(*stream)) {
    return report(illegal);
  }
  event->record(*stream);
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaEventRecord(cudaEvent_t event,
                                        cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}

SIMCUDA_API cudaError_t cudaEventQuery(cudaEvent_t handle) {
  SIMCUDA_ENTER("cudaEventQuery", cudaErrorUnknown);
  const auto event = find_event(handle);
  if (!event) {
    return report(cudaErrorInvalidResourceHandle);
  }
  const cudaError_t illegal = check_wait(*event);
  return illegal ? report(illegal) : query(event->mark());
}

SIMCUDA_API cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  SIMCUDA_ENTER("cudaEventSynchronize", cudaErrorUnknown);
  const auto event = find_event(handle);
  if (!event) {
    return report(cudaErrorInvalidResourceHandle);
  }
  if (const cudaError_t illegal = check_wait(*event)) {
    return report(illegal);
  }
  event->mark().wait();
  return report(sticky());
}

SIMCUDA_API cudaError_t cudaEventElapsedTime(float* milliseconds,
                                             cudaEvent_t start_handle,
                                             cudaEvent_t end_handle) {
  SIMCUDA_ENTER("cudaEventElapsedTime", cudaErrorUnknown);
  const auto start = find_event(start_handle);
  const auto end = find_event(end_handle);
  if (!start || !end || !start->timed || !end->timed || !start->recorded() ||
      !end->recorded()) {
    return report(cudaErrorInvalidResourceHandle);
  }
  for (Event* event : {start.get(), end.get()}) {
    if (event->captured().capture) {
      return report(check_wait(*event));
    }
  }
  if (!start->mark().reached() || !end->mark().reached()) {
    return report(cudaErrorNotReady);
  }
  *milliseconds =
      end.get() == start.get() ? 0 : end->milliseconds_since(*start);
  return cudaSuccess;
}

// The host may wait for the function without telling CUDA, so it is not
// delayed.
SIMCUDA_API cudaError_t cudaLaunchHostFunc(cudaStream_t handle,
                                           cudaHostFn_t function, void* data) {
  SIMCUDA_ENTER("cudaLaunchHostFunc", cudaErrorUnknown);
  const auto stream = find_stream(handle, current_device());
  if (!stream) {
    return report(cudaErrorInvalidResourceHandle);
  }
  if (const cudaError_t illegal = check_launch(*stream)) {
    return report(illegal);
  }
  if (timed()) {
    // It runs now, and what it does with disks takes its time in the stream.
    const Cost cost = disk_cost([function, data] { function(data); });
    if (cost.takes > 0) {
      stream->enqueue({TaskKind::Copy, {}, cost});
    }
    return cudaSuccess;
  }
  stream->enqueue({TaskKind::Control, [function, data] { function(data); }})
      .demand();
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaStreamAddCallback(cudaStream_t handle,
                                              cudaStreamCallback_t function,
                                              void* data, unsigned /*flags*/) {
  SIMCUDA_ENTER("cudaLaunchHostFunc", cudaErrorUnknown);
  const auto stream = find_stream(handle, current_device());
  if (!stream) {
    return report(cudaErrorInvalidResourceHandle);
  }
  if (const cudaError_t illegal = check_not_captured(*stream)) {
    return report(illegal);
  }
  stream
      ->enqueue(
          {TaskKind::Control, [=] { function(handle, cudaSuccess, data); }})
      .demand();
  return cudaSuccess;
}
}
