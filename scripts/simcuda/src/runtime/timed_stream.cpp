#include "timed_stream.h"

#include <exception>
#include <utility>

#include "calls.h"
#include "timing.h"

namespace simcuda {

TimedStream::TimedStream(int device_, bool implicit_, int priority_)
    : Stream(device_, implicit_, priority_), id_(timing::add_stream(device_)) {}

bool TimedStream::reached(uint64_t number) const {
  return timing::reached(id_, number);
}

void TimedStream::wait(uint64_t number) {
  timing::wait(id_, number);
}

void TimedStream::push(Task task) {
  if (task.kind != TaskKind::Control) {
    const Cost& cost = task.cost;
    if (task.meeting) {
      timing::add_collective(id_, task.communicator, task.meeting, cost.takes,
                             cost.name);
      return;
    }
    timing::add_work(id_, cost.part, cost.takes, cost.name);
    return;
  }
  try {
    task.work();
  } catch (const std::exception& error) {
    stick(cudaErrorAssert, error.what());
  }
}

void TimedStream::push_stamp(std::shared_ptr<int64_t> when) {
  timing::add_stamp(id_, std::move(when));
}

void TimedStream::push_wait(const Mark& mark) {
  const auto& other = static_cast<const TimedStream&>(*mark.stream);
  timing::add_wait(id_, other.id_, mark.number);
}

uint64_t TimedStream::last() const {
  return timing::last(id_);
}

}  // namespace simcuda
