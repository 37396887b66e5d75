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

cudaEvent_t add(std::shared_ptr<Event> event) {
  const auto handle = reinterpret_cast<cudaEvent_t>(event.get());
  Events& all = events();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.by_handle[handle] = std::move(event);
  return handle;
}

}  // namespace

Event::Event(int device_, bool timed_) : timed(timed_), device(device_) {}

Event::Event(int device_, std::shared_ptr<SharedEvent> shared)
    : timed(false), device(device_), shared_(std::move(shared)) {}

Event::~Event() {
  if (relay_) {
    relay_->close();
  }
}

void Event::record(Stream& stream) {
  if (CapturedPoint point = captured_point(stream); point.capture) {
    std::lock_guard<std::mutex> lock(mutex_);
    captured_ = std::move(point);
    return;
  }
  auto time = std::make_shared<int64_t>(0);
  Mark mark = timed ? stream.stamp(time) : stream.tail();
  std::lock_guard<std::mutex> lock(mutex_);
  if (shared_) {
    record_ = shared_->record();
    mark = stream.enqueue({TaskKind::Control, [event = shared_, n = record_] {
                             event->reach(n);
                           }});
  }
  mark_ = std::move(mark);
  captured_ = {};
  time_ = std::move(time);
}

Mark Event::mark() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (shared_ && shared_->recorded() != record_) {
    if (!relay_) {
      relay_ = make_stream(device, false, 0);
    }
    record_ = shared_->recorded();
    mark_ = relay_->enqueue({TaskKind::Control, [event = shared_, n = record_] {
                               event->wait_for(n);
                             }});
  }
  return mark_;
}

bool Event::recorded() {
  return mark().stream != nullptr;
}

CapturedPoint Event::captured() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return captured_;
}

std::optional<SharedName> Event::shared_name() const {
  return shared_ ? std::optional(shared_->name()) : std::nullopt;
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
  if ((flags & cudaEventInterprocess) != 0) {
    return add(
        std::make_shared<Event>(device, std::make_shared<SharedEvent>(device)));
  }
  const bool timed = (flags & cudaEventDisableTiming) == 0;
  return add(std::make_shared<Event>(device, timed));
}

cudaEvent_t open_event(const SharedName& name) {
  return add(std::make_shared<Event>(name.device,
                                     std::make_shared<SharedEvent>(name)));
}

bool destroy_event(cudaEvent_t handle) {
  Events& all = events();
  std::lock_guard<std::mutex> lock(all.mutex);
  return all.by_handle.erase(handle) == 1;
}

}  // namespace simcuda
