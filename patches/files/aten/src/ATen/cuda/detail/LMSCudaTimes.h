#pragma once

#include <ATen/cuda/detail/LMSCoreCopyRate.h>
#include <ATen/cuda/detail/LMSCorePolicy.h>
#include <ATen/cuda/detail/LMSCoreStats.h>
#include <ATen/cuda/detail/LMSCudaEvent.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

namespace at::cuda::lms {

// How long copies take and streams wait for them, and how long the device takes
// from one mark to the next, as timed events tell once they have happened.
// Nobody waits for that. Not thread safe.
class Times {
 public:
  // Microseconds between two events on a stream that mean nothing: about what
  // the host needs to launch them one after the other.
  static constexpr double kNoWait = 10;

  // Between two timed events of one stream. `bytes`: of a copy.
  void add(Activity activity, Event begin, Event end, size_t bytes = 0);
  // What is known by now.
  const TimesSpent& totals() noexcept;
  // Nanoseconds that a byte takes to the host, as far as it was known when
  // anybody asked last. It asks the device for nothing.
  double copy_ns() const {
    constexpr double kAtFirst = 1.0 / 12; // of PCIe 3.0
    return rates_.ns_per_byte().value_or(kAtFirst);
  }
  void add_mark(uint64_t mark, Event event);
  const Clock& clock() noexcept;

 private:
  struct Span {
    Activity activity;
    Event begin;
    Event end;
    size_t bytes;
  };

  void collect() noexcept;

  std::deque<Span> pending_; // in order of their launch
  size_t collect_at_ = 0; // pending spans
  TimesSpent totals_{};
  CopyRates rates_;
  std::deque<std::pair<uint64_t, Event>> marks_; // pending, in order
  Event passed_; // the last mark that has
  Clock clock_;
};

} // namespace at::cuda::lms
