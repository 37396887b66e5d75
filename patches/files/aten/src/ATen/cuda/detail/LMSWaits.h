#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>

namespace at::cuda::lms {

// Note [Waits of the host]
// ~~~~~~~~~~~~~~~~~~~~~~~~
// Jobs on several devices share what a process has only once: switches, default
// generators, modules of Python. So their programs run one at a time, and one
// lets another go on where it would only wait for its device (torch.cuda.lms.
// jobs). LMS knows these places: where the host is too far ahead of the device
// (Note [The host's lead]), and operators whose results the host reads. While
// somebody watches, the host's lead is always bounded: it would otherwise wait
// where a stream is full, which nobody sees.

// The functions that are called before and after the host waits for a device;
// 0: none. They may take the GIL.
void watch_waits(int64_t begin, int64_t end);
bool are_waits_watched();

// Whether the host may wait for the device where an operator of that name ends,
// while somebody watches. Autocast casts with a mutex held, which those that
// are let go on want for casts of their own.
bool may_wait_in(uint64_t operator_name);

// The host waits for the device, in one place.
class WaitScope {
 public:
  explicit WaitScope(c10::DeviceIndex device);
  ~WaitScope();
  WaitScope(const WaitScope&) = delete;
  WaitScope& operator=(const WaitScope&) = delete;

 private:
  const c10::DeviceIndex device_;
  const int64_t end_; // a function; 0: none
};

// An operator with these arguments is about to wait for the device, so that the
// host can read what it gives: waits in its place. Does nothing where the
// operator is a copy that does not go to the host.
void wait_before_reading(c10::ArrayRef<c10::IValue> arguments);

} // namespace at::cuda::lms
