#pragma once

#include <ATen/cuda/detail/LMSCudaEvent.h>
#include <ATen/cuda/detail/LMSCoreStats.h>

#include <cstddef>
#include <deque>

namespace at::cuda::lms {

// How long copies take and streams wait for them, as timed events around them
// tell once they have happened. Nobody waits for that. Not thread safe.
class Times {
 public:
  // Microseconds between two events on a stream that mean nothing: about what
  // the host needs to launch them one after the other.
  static constexpr double kNoWait = 10;

  // Between two timed events of one stream.
  void add(Activity activity, Event begin, Event end);
  // What is known by now.
  const TimesSpent& totals() noexcept;
  // Of the device, from the first span that was added to the end of the last
  // one that is known to have passed.
  double elapsed_us() const {
    return elapsed_us_;
  }

 private:
  struct Span {
    Activity activity;
    Event begin;
    Event end;
  };

  void collect() noexcept;

  std::deque<Span> pending_; // in order of their launch
  size_t collect_at_ = 0; // pending spans
  TimesSpent totals_{};
  Event latest_; // end of a span
  double elapsed_us_ = 0;
};

} // namespace at::cuda::lms
