#include "stream.h"

#include <cuda_runtime_api.h>
#include <pthread.h>

#include <algorithm>
#include <exception>
#include <map>
#include <thread>
#include <utility>

#include "calls.h"

namespace simcuda {
namespace {

struct Streams {
  std::mutex mutex;
  std::map<cudaStream_t, std::shared_ptr<Stream>> created;
  std::map<int, std::shared_ptr<Stream>> legacy;  // by device
  std::vector<std::shared_ptr<Stream>> per_thread;

  std::vector<std::shared_ptr<Stream>> of(int device) {
    std::vector<std::shared_ptr<Stream>> found;
    const auto add = [&](const std::shared_ptr<Stream>& stream) {
      if (device < 0 || stream->device == device) {
        found.push_back(stream);
      }
    };
    std::lock_guard<std::mutex> lock(mutex);
    for (const auto& [handle, stream] : created) {
      add(stream);
    }
    for (const auto& [index, stream] : legacy) {
      add(stream);
    }
    for (const auto& stream : per_thread) {
      add(stream);
    }
    return found;
  }
};

Streams& streams() {
  static Streams* all = new Streams;
  return *all;
}

std::shared_ptr<Stream> legacy_stream(int device) {
  Streams& all = streams();
  std::lock_guard<std::mutex> lock(all.mutex);
  auto& stream = all.legacy[device];
  if (!stream) {
    stream = std::make_shared<Stream>(device, true, 0);
  }
  return stream;
}

std::shared_ptr<Stream> thread_stream(int device) {
  thread_local std::map<int, std::shared_ptr<Stream>> mine;
  auto& stream = mine[device];
  if (!stream) {
    stream = std::make_shared<Stream>(device, true, 0);
    Streams& all = streams();
    std::lock_guard<std::mutex> lock(all.mutex);
    all.per_thread.push_back(stream);
  }
  return stream;
}

bool is_legacy(const Stream& stream) {
  Streams& all = streams();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.legacy.find(stream.device);
  return found != all.legacy.end() && found->second.get() == &stream;
}

}  // namespace

bool Mark::reached() const {
  return !stream || stream->reached(number);
}

void Mark::wait() const {
  if (stream) {
    stream->wait(number);
  }
}

void Mark::demand() const {
  if (stream) {
    stream->demand(number);
  }
}

Stream::Stream(int device_, bool implicit_, int priority_)
    : device(device_),
      implicit(implicit_),
      priority(priority_) {}

Mark Stream::enqueue(TaskKind kind, std::function<void()> work) {
  join_implicitly();
  push(kind, std::move(work));
  return own_tail();
}

void Stream::wait_for(const Mark& mark) {
  if (mark.stream.get() != this && !mark.reached()) {
    push(TaskKind::Control, [mark] { mark.wait(); });
  }
}

Mark Stream::tail() {
  join_implicitly();
  return own_tail();
}

Mark Stream::own_tail() {
  std::lock_guard<std::mutex> lock(mutex_);
  return {shared_from_this(), last_};
}

// The legacy default stream waits for every blocking stream of its device, and
// they for it. Streams made with cudaStreamNonBlocking take no part.
void Stream::join_implicitly() {
  if (!implicit) {
    return;
  }
  if (!is_legacy(*this)) {
    wait_for(legacy_stream(device)->own_tail());
    return;
  }
  for (const auto& other : streams().of(device)) {
    if (other.get() != this && other->implicit) {
      wait_for(other->own_tail());
    }
  }
}

void Stream::push(TaskKind kind, std::function<void()> work) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (queue_.size() >= kDepth) {
    demand_ = std::max(demand_, last_);
    wake_worker_.notify_one();
    wake_waiters_.wait(lock, [this] { return queue_.size() < kDepth; });
  }
  queue_.push_back({kind, std::move(work)});
  ++last_;
  start_worker();
  wake_worker_.notify_one();
}

void Stream::start_worker() {
  if (!std::exchange(has_worker_, true)) {
    // Detached: it lives as long as its stream's handle, and owns the stream.
    std::thread([self = shared_from_this()] {
      pthread_setname_np(pthread_self(), "simcuda");
      self->work();
    }).detach();
  }
}

bool Stream::has_ended() const {
  return closed_ && queue_.empty();
}

void Stream::close() {
  std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  demand_ = last_;
  wake_worker_.notify_one();
}

bool Stream::may_run() const {
  return !queue_.empty() &&
      (!config().delays(queue_.front().kind) || demand_ > done_.load());
}

void Stream::work() {
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

void Stream::wait(uint64_t number) {
  if (reached(number)) {
    return;
  }
  demand(number);
  std::unique_lock<std::mutex> lock(mutex_);
  wake_waiters_.wait(lock, [&] { return reached(number); });
}

void Stream::demand(uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (number > demand_) {
    demand_ = number;
    wake_worker_.notify_one();
  }
}

std::shared_ptr<Stream> find_stream(cudaStream_t handle, int device) {
  if (handle == nullptr || handle == cudaStreamLegacy) {
    return legacy_stream(device);
  }
  if (handle == cudaStreamPerThread) {
    return thread_stream(device);
  }
  Streams& all = streams();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.created.find(handle);
  return found == all.created.end() ? nullptr : found->second;
}

cudaStream_t create_stream(int device, unsigned flags, int priority) {
  const bool implicit = (flags & cudaStreamNonBlocking) == 0;
  auto stream = std::make_shared<Stream>(device, implicit, priority);
  const auto handle = reinterpret_cast<cudaStream_t>(stream.get());
  Streams& all = streams();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.created[handle] = std::move(stream);
  return handle;
}

bool destroy_stream(cudaStream_t handle) {
  std::shared_ptr<Stream> stream;
  {
    Streams& all = streams();
    std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = all.created.find(handle);
    if (found == all.created.end()) {
      return false;
    }
    stream = std::move(found->second);
    all.created.erase(found);
  }
  stream->close();
  return true;
}

std::vector<Mark> all_tails(int device) {
  std::vector<Mark> marks;
  for (const auto& stream : streams().of(device)) {
    marks.push_back(stream->own_tail());
  }
  return marks;
}

void synchronize(int device) {
  for (const Mark& mark : all_tails(device)) {
    mark.wait();
  }
}

}  // namespace simcuda
