// Streams order work: a wait that the program forgot is not made up for. What
// work is differs: a worker thread runs it (worker_stream.h), or it takes
// virtual time (timed_stream.h).
#pragma once

#include <driver_types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "config.h"
#include "cost.h"

namespace simcuda {

class Stream;

// A point in a stream: everything queued there up to and including `number`.
struct Mark {
  std::shared_ptr<Stream> stream;
  uint64_t number = 0;

  bool reached() const;
  // Blocks the caller, and lets delayed work up to here run.
  void wait() const;
  // Lets delayed work up to here run, without blocking.
  void demand() const;
};

struct Task {
  TaskKind kind;
  // Run when it is the task's turn; in virtual time only Control tasks are, at
  // once. An exception sticks to the device.
  std::function<void()> work;
  Cost cost = {};  // in virtual time, of tasks that are not Control
  // In virtual time, where collectives of a communicator meet.
  std::shared_ptr<Meeting> meeting = nullptr;
  const void* communicator = nullptr;
};

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(int device, bool implicit, int priority);
  virtual ~Stream() = default;

  // Appends work, or makes it part of the graph that is being captured; throws
  // nothing.
  Mark enqueue(Task task);
  // Appends a note of the time, in nanoseconds, at which it is reached.
  Mark stamp(std::shared_ptr<int64_t> when);
  // Makes later work of this stream wait for the mark.
  void wait_for(const Mark& mark);
  // The last work queued so far, after what CUDA orders before it implicitly.
  Mark tail();
  // As tail(), leaving out the implicit order of the legacy default stream.
  Mark own_tail();

  virtual bool reached(uint64_t number) const = 0;
  virtual void wait(uint64_t number) = 0;
  virtual void demand(uint64_t number) = 0;
  // The handle is gone: what is queued is finished.
  virtual void close() = 0;

  const int device;
  const bool implicit;  // ordered with the legacy default stream
  const int priority;

 private:
  void join_implicitly();
  virtual void push(Task task) = 0;
  virtual void push_stamp(std::shared_ptr<int64_t> when) = 0;
  virtual void push_wait(const Mark& mark) = 0;
  virtual uint64_t last() const = 0;
};

// One without a handle.
std::shared_ptr<Stream> make_stream(int device, bool implicit, int priority);
// The stream of a handle for the calling thread, which may be one of the three
// default streams; empty when there is no such stream.
std::shared_ptr<Stream> find_stream(cudaStream_t handle, int device);
cudaStream_t create_stream(int device, unsigned flags, int priority);
bool destroy_stream(cudaStream_t handle);

// True for the device's legacy default stream.
bool is_legacy(const Stream& stream);

// Marks of all streams of the device, -1 for every device.
std::vector<Mark> all_tails(int device);
void synchronize(int device);

}  // namespace simcuda
