// A stream that is a queue with a worker thread of its own. Nothing else orders
// work, so that a missing wait is seen as wrong data.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

#include "stream.h"

namespace simcuda {

class WorkerStream : public Stream {
 public:
  using Stream::Stream;

  bool reached(uint64_t number) const override {
    return done_.load() >= number;
  }
  void wait(uint64_t number) override;
  void demand(uint64_t number) override;
  void close() override;

 private:
  void push(Task task) override;
  void push_stamp(std::shared_ptr<int64_t> when) override;
  void push_wait(const Mark& mark) override;
  uint64_t last() const override;

  void start_worker();
  void work();
  bool may_run() const;
  bool has_ended() const;
  void wait_until(std::unique_lock<std::mutex>& lock,
                  const std::function<bool()>& holds);

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

}  // namespace simcuda
