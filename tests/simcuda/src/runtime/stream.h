// Streams are queues, each with a worker thread of its own. Nothing else orders
// work: a wait that the program forgot is not made up for, and is seen as wrong
// data.
#pragma once

#include <driver_types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "config.h"

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

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(int device, bool implicit, int priority);

  // Appends work; throws nothing. An exception in `work` sticks to the device.
  Mark enqueue(TaskKind kind, std::function<void()> work);
  // Makes later work of this stream wait for the mark.
  void wait_for(const Mark& mark);
  // The last work queued so far, after what CUDA orders before it implicitly.
  Mark tail();
  // As tail(), leaving out the implicit order of the legacy default stream.
  Mark own_tail();

  bool reached(uint64_t number) const {
    return done_.load() >= number;
  }
  void wait(uint64_t number);
  void demand(uint64_t number);
  // The handle is gone: the worker finishes what is queued, then ends.
  void close();

  const int device;
  const bool implicit;  // ordered with the legacy default stream
  const int priority;

 private:
  struct Task {
    TaskKind kind;
    std::function<void()> work;
  };

  void join_implicitly();
  void push(TaskKind kind, std::function<void()> work);
  void start_worker();
  void work();
  bool may_run() const;
  bool has_ended() const;

  // A launch blocks when this many tasks are queued, as on a card.
  static constexpr size_t kDepth = 1024;

  mutable std::mutex mutex_;
  std::condition_variable wake_worker_;
  std::condition_variable wake_waiters_;
  std::deque<Task> queue_;
  uint64_t last_ = 0;    // number of the last task queued
  uint64_t demand_ = 0;  // delayed tasks up to this number must run
  std::atomic<uint64_t> done_{0};
  bool has_worker_ = false;
  bool closed_ = false;
};

// The stream of a handle for the calling thread, which may be one of the three
// default streams; empty when there is no such stream.
std::shared_ptr<Stream> find_stream(cudaStream_t handle, int device);
cudaStream_t create_stream(int device, unsigned flags, int priority);
bool destroy_stream(cudaStream_t handle);

// Marks of all streams of the device, -1 for every device.
std::vector<Mark> all_tails(int device);
void synchronize(int device);

}  // namespace simcuda
