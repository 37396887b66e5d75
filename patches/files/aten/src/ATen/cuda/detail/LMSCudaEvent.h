#pragma once

#include <ATen/cuda/detail/LMSCoreHandles.h>
#include <c10/core/Device.h>
#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>

namespace at::cuda::lms {

// CUDA events. Destroyed ones are not returned to CUDA one by one but kept for
// reuse on their device.

// Records a new event at the end of what is queued on the stream. The device
// must be current. Throws c10::Error when CUDA does.
Event record_event(c10::DeviceIndex device, cudaStream_t stream);

// The same with the time at which it happens, which costs the device more. Any
// device may be current.
Event record_timed_event(c10::DeviceIndex device, cudaStream_t stream);

// Microseconds on the device between two timed events that have happened.
// Throws c10::Error when CUDA does.
double microseconds_between(const Event& begin, const Event& end);

// The same for memory that will be used again after what is queued, which must
// not fail: if it does, the host waits for the stream, and the result is null.
// Any device may be current.
Event event_or_drained(c10::DeviceIndex device, cudaStream_t stream) noexcept;

// Waits on the host for what is queued on the stream. Throws c10::Error when
// CUDA does.
void synchronize(cudaStream_t stream);

// The same, since something failed.
// Errors are ignored: the first one is the one to report.
void drain(cudaStream_t stream) noexcept;

// Makes later work on the stream wait for the event, without blocking the
// host. Throws c10::Error when CUDA does.
void wait_event(cudaStream_t stream, const Event& event);

// Waits on the host until the event has happened. Throws c10::Error when CUDA
// does.
void synchronize(const Event& event);

// The same, but false after an error, which later calls report.
bool wait_on_host(const Event& event) noexcept;

// True once the event has happened. Errors count as not happened: whoever
// waits for it will report them.
bool has_happened(const Event& event);

} // namespace at::cuda::lms
