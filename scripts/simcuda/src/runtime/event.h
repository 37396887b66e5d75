// Events: a mark in a stream, and the time at which it was reached.
#pragma once

#include <driver_types.h>

#include <memory>
#include <mutex>
#include <optional>

#include "capture.h"
#include "ipc.h"
#include "stream.h"

namespace simcuda {

class Event {
 public:
  Event(int device, bool timed);
  // One of several processes'; it is not timed.
  Event(int device, std::shared_ptr<SharedEvent> shared);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(Stream& stream);
  Mark mark();  // empty before the first record: reached
  const bool timed;
  const int device;

  // Milliseconds from `start` to this; both must have been reached.
  float milliseconds_since(const Event& start) const;
  bool recorded();
  // Where it was last recorded, if on a captured stream.
  CapturedPoint captured() const;

  // How another process finds it; empty if it was not made for that.
  std::optional<SharedName> shared_name() const;

 private:
  mutable std::mutex mutex_;
  Mark mark_;
  CapturedPoint captured_;
  std::shared_ptr<SharedEvent> shared_;
  uint64_t record_ = 0;            // of the shared event, that the mark is of
  std::shared_ptr<Stream> relay_;  // waits for the records of other processes
  std::shared_ptr<int64_t> time_;  // nanoseconds, set when it is reached
};

std::shared_ptr<Event> find_event(cudaEvent_t handle);
cudaEvent_t create_event(int device, unsigned flags);
cudaEvent_t open_event(const SharedName& name);
bool destroy_event(cudaEvent_t handle);

}  // namespace simcuda
