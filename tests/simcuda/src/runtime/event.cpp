#include "event.h"

#include <cuda_runtime_api.h>

#include <map>
#include <utility>

namespace simcuda {
namespace {

struct Events {
  std::mutex mutex;
  std::map<cudaEvent_t, std::shared_ptr<Event>> by_handle;
};

Events& events() {
  static Events* all = new Events;
  return *all;
}

}  // namespace

Event::Event(int device_, bool timed_) : timed(timed_), device(device_) {}

void Event::record(Stream& stream) {
  auto time = std::make_shared<int64_t>(0);
  Mark mark = timed ? stream.stamp(time) : stream.tail();
  std::lock_guard<std::mutex> lock(mutex_);
  mark_ = std::move(mark);
  time_ = std::move(time);
}

Mark Event::mark() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return mark_;
}

bool Event::recorded() const {
  return mark().stream != nullptr;
}

float Event::milliseconds_since(const Event& start) const {
  std::scoped_lock lock(mutex_, start.mutex_);
  return static_cast<float>(static_cast<double>(*time_ - *start.time_) / 1e6);
}

std::shared_ptr<Event> find_event(cudaEvent_t handle) {
  Events& all = events();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.by_handle.find(handle);
  return found == all.by_handle.end() ? nullptr : found->second;
}

cudaEvent_t create_event(int device, unsigned flags) {
  const bool timed = (flags & cudaEventDisableTiming) == 0;
  auto event = std::make_shared<Event>(device, timed);
  const auto handle = reinterpret_cast<cudaEvent_t>(event.get());
  Events& all = events();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.by_handle[handle] = std::move(event);
  return handle;
}

bool destroy_event(cudaEvent_t handle) {
  Events& all = events();
  std::lock_guard<std::mutex> lock(all.mutex);
  return all.by_handle.erase(handle) == 1;
}

}  // namespace simcuda
