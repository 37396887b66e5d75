// Events: a mark in a stream, and the time at which it was reached.
#pragma once

#include <driver_types.h>

#include <memory>
#include <mutex>

#include "stream.h"

namespace simcuda {

class Event {
 public:
  Event(int device, bool timed);

  void record(Stream& stream);
  Mark mark() const;  // empty before the first record: reached
  const bool timed;
  const int device;

  // Milliseconds from `start` to this; both must have been reached.
  float milliseconds_since(const Event& start) const;
  bool recorded() const;

 private:
  mutable std::mutex mutex_;
  Mark mark_;
  std::shared_ptr<int64_t> time_;  // nanoseconds, set when it is reached
};

std::shared_ptr<Event> find_event(cudaEvent_t handle);
cudaEvent_t create_event(int device, unsigned flags);
bool destroy_event(cudaEvent_t handle);

}  // namespace simcuda
