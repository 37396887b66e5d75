#include "stream.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "calls.h"
#include "capture.h"
#include "timed_stream.h"
#include "worker_stream.h"

namespace simcuda {
namespace {

struct Streams {
  std::mutex mutex;
  std::map<cudaStream_t, std::shared_ptr<Stream>> created;
  uintptr_t handles = 0;                // that were ever needed at once
  std::vector<cudaStream_t> destroyed;  // handles, free to be given again
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

// That of the stream destroyed last, as from a driver's heap, so that whoever
// takes a new stream for the old one is found out.
cudaStream_t next_handle(Streams& all) {
  constexpr uintptr_t kStep = 16;  // PyTorch wants them to be even
  if (all.destroyed.empty()) {
    // Above the three default streams' handles.
    return reinterpret_cast<cudaStream_t>(++all.handles * kStep);
  }
  const cudaStream_t handle = all.destroyed.back();
  all.destroyed.pop_back();
  return handle;
}

// To CUDA the use of a destroyed stream is undefined behaviour: whoever ignores
// the error must not get away with it.
void stick_if_destroyed(const Streams& all, cudaStream_t handle) {
  if (std::find(all.destroyed.begin(), all.destroyed.end(), handle) !=
      all.destroyed.end()) {
    stick(cudaErrorInvalidResourceHandle, "a destroyed stream was used");
  }
}

std::shared_ptr<Stream> legacy_stream(int device) {
  Streams& all = streams();
  std::lock_guard<std::mutex> lock(all.mutex);
  auto& stream = all.legacy[device];
  if (!stream) {
    stream = make_stream(device, true, 0);
  }
  return stream;
}

std::shared_ptr<Stream> thread_stream(int device) {
  thread_local std::map<int, std::shared_ptr<Stream>> mine;
  auto& stream = mine[device];
  if (!stream) {
    stream = make_stream(device, true, 0);
    Streams& all = streams();
    std::lock_guard<std::mutex> lock(all.mutex);
    all.per_thread.push_back(stream);
  }
  return stream;
}

}  // namespace

bool is_legacy(const Stream& stream) {
  Streams& all = streams();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.legacy.find(stream.device);
  return found != all.legacy.end() && found->second.get() == &stream;
}

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
    : device(device_), implicit(implicit_), priority(priority_) {}

Mark Stream::enqueue(Task task) {
  if (add_to_capture(*this, task)) {
    return {};
  }
  join_implicitly();
  push(std::move(task));
  return own_tail();
}

Mark Stream::stamp(std::shared_ptr<int64_t> when) {
  join_implicitly();
  push_stamp(std::move(when));
  return own_tail();
}

void Stream::wait_for(const Mark& mark) {
  if (mark.stream.get() != this && !mark.reached()) {
    push_wait(mark);
  }
}

Mark Stream::tail() {
  join_implicitly();
  return own_tail();
}

Mark Stream::own_tail() {
  return {shared_from_this(), last()};
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

std::shared_ptr<Stream> make_stream(int device, bool implicit, int priority) {
  if (timed()) {
    return std::make_shared<TimedStream>(device, implicit, priority);
  }
  return std::make_shared<WorkerStream>(device, implicit, priority);
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
  if (found != all.created.end()) {
    return found->second;
  }
  stick_if_destroyed(all, handle);
  return nullptr;
}

cudaStream_t create_stream(int device, unsigned flags, int priority) {
  const bool implicit = (flags & cudaStreamNonBlocking) == 0;
  auto stream = make_stream(device, implicit, priority);
  Streams& all = streams();
  std::lock_guard<std::mutex> lock(all.mutex);
  const cudaStream_t handle = next_handle(all);
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
      stick_if_destroyed(all, handle);
      return false;
    }
    stream = std::move(found->second);
    all.created.erase(found);
    all.destroyed.push_back(handle);
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
