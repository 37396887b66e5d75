#pragma once

#include <ATen/cuda/detail/LMSEvent.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>

namespace at::cuda::lms {

// What is timed on the device.
enum class Activity : size_t {
  kPageIn, // a copy to the device
  kPageOut, // a copy to the host
  kMove, // a copy within the device
  kWaitForDemand, // a stream stands still: for bytes fetched when needed,
  kWaitForAhead, // for bytes that were fetched ahead, but late,
  kWaitForMemory, // for memory that is being copied from, or moved bytes
  kCount
};

struct TimeSpent {
  int64_t times = 0; // that took at least Times::kNoWait
  int64_t none = 0; // that took less
  double us = 0; // of both
};

// How long copies take and streams wait for them, as timed events around them
// tell once they have happened. Nobody waits for that. Not thread safe.
class Times {
 public:
  using Totals = std::array<TimeSpent, static_cast<size_t>(Activity::kCount)>;

  // Microseconds between two events on a stream that mean nothing: about what
  // the host needs to launch them one after the other.
  static constexpr double kNoWait = 10;

  // Between two timed events of one stream.
  void add(Activity activity, Event begin, Event end);
  // What is known by now.
  const Totals& totals() noexcept;

 private:
  struct Span {
    Activity activity;
    Event begin;
    Event end;
  };

  void collect() noexcept;

  std::deque<Span> pending_; // in order of their launch
  size_t collect_at_ = 0; // pending spans
  Totals totals_{};
};

} // namespace at::cuda::lms
