#include "worker_stream.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include "calls.h"
#include "python_lock.h"
#include "unchecked.h"

namespace simcuda {

void WorkerStream::push(Task task) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (queue_.size() >= kDepth) {
    demand_ = std::max(demand_, last_);
    wake_worker_.notify_one();
    wait_until(lock, [this] { return queue_.size() < kDepth; });
  }
  queue_.push_back(std::move(task));
  ++last_;
  start_worker();
  wake_worker_.notify_one();
}

void WorkerStream::push_stamp(std::shared_ptr<int64_t> when) {
  push({TaskKind::Control, [when = std::move(when)] {
          const auto now = std::chrono::steady_clock::now().time_since_epoch();
          *when = std::chrono::nanoseconds(now).count();
        }});
}

void WorkerStream::push_wait(const Mark& mark) {
  push({TaskKind::Control, [mark] { mark.wait(); }});
}

uint64_t WorkerStream::last() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return last_;
}

void WorkerStream::start_worker() {
  if (!std::exchange(has_worker_, true)) {
    // Detached: it lives as long as its stream's handle, and owns the stream.
    std::thread([this, self = shared_from_this()] {
      pthread_setname_np(pthread_self(), "simcuda");
      work();
    }).detach();
  }
}

bool WorkerStream::has_ended() const {
  return closed_ && queue_.empty();
}

void WorkerStream::close() {
  std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  demand_ = last_;
  wake_worker_.notify_one();
}

bool WorkerStream::may_run() const {
  return !queue_.empty() &&
         (!config().delays(queue_.front().kind) || demand_ > done_.load());
}

void WorkerStream::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    wake_worker_.wait(lock, [this] { return may_run() || has_ended(); });
    if (has_ended()) {
      return;
    }
    Task task = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    try {
      std::optional<Unchecked> unchecked;
      if (task.kind != TaskKind::Control) {
        unchecked.emplace();
      }
      task.work();
    } catch (const std::exception& error) {
      stick(cudaErrorAssert, error.what());
    }
    task.work = nullptr;  // releases what it held before anybody goes on
    lock.lock();
    ++done_;
    wake_waiters_.notify_all();
  }
}

void WorkerStream::wait(uint64_t number) {
  if (reached(number)) {
    return;
  }
  demand(number);
  std::unique_lock<std::mutex> lock(mutex_);
  wait_until(lock, [&] { return reached(number); });
}

void WorkerStream::wait_until(std::unique_lock<std::mutex>& lock,
                              const std::function<bool()>& holds) {
  while (!holds()) {
    {
      const PythonReleased python;
      wake_waiters_.wait(lock, holds);
      lock.unlock();  // who has Python's lock may wait for this one
    }
    lock.lock();
  }
}

void WorkerStream::demand(uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (number > demand_) {
    demand_ = number;
    wake_worker_.notify_one();
  }
}

}  // namespace simcuda
