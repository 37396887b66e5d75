#pragma once

#include <ATen/cuda/detail/LMSCudaEvent.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>

namespace at::cuda::lms {

// How long operators take, by signature: the least of a few times that each was
// timed. Guarded by the mutex of the device.
class Durations {
 public:
  // It is not known yet, as far as is needed. After kMostTries only each
  // kSeldom-th time is wanted: the stream has to wait in the middle of the
  // operator nearly always, and to time it takes time of the host.
  bool is_wanted(uint64_t signature);
  // Timed events on both sides of an operator.
  void add(uint64_t signature, Event begin, Event end);
  // Nanoseconds; 0 if it is not known yet.
  uint64_t of(uint64_t signature) const {
    const auto found = all_.find(signature);
    return found == all_.end() ? 0 : found->second.ns;
  }

 private:
  static constexpr int kMeasured = 4; // times
  static constexpr unsigned kMostTries = 16;
  static constexpr unsigned kSeldom = 16;
  static constexpr size_t kMost = 1 << 16; // signatures, then all are forgotten
  static constexpr size_t kMostPending = 1024; // times that are not known yet

  struct Duration {
    uint64_t ns = 0;
    int wanted = kMeasured; // times more
    unsigned tries = 0;
  };
  struct Span {
    uint64_t signature;
    Event begin;
    Event end;
  };

  void collect();

  std::unordered_map<uint64_t, Duration> all_;
  std::deque<Span> pending_; // in order
};

} // namespace at::cuda::lms
