#include "world.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "card.h"
#include "config.h"
#include "device.h"

namespace simcuda::timing {
namespace {

int next_number() {
  static std::atomic<int> last{0};
  return ++last;
}

}  // namespace

World::World()
    : simulation(config().devices + 1, card().sharing),
      lanes(simulation, config().devices) {
  timeline.open(config().timeline);
  simulation.observer = [this](const Interval& interval) {
    if (interval.device == config().devices) {
      return;
    }
    busy[static_cast<size_t>(interval.device)]
        [static_cast<size_t>(interval.part)] += interval.end - interval.start;
    timeline.write(interval);
  };
}

void World::advance() {
  if (lanes.are_on()) {
    lanes.advance();
    program = std::max(program, simulation.now());
  } else {
    simulation.run_to(program);
  }
}

World& world() {
  static World* w = new World;
  return *w;
}

Clock::Clock()
    : number_(next_number()),
      in_program_(getpid() == static_cast<pid_t>(syscall(SYS_gettid))) {}

void Clock::join_program(const World& w) {
  in_program_ = true;
  if (lane(w) < 0 && w.lanes.are_on() && w.lanes.is_started(current_device())) {
    lane_ = current_device();
  }
}

bool Clock::in_program(const World& w) const {
  return w.lanes.are_on() ? lane(w) >= 0 : in_program_;
}

int Clock::lane(const World& w) const {
  return lane_ >= 0 && w.lanes.is_started(lane_) ? lane_ : -1;
}

void Clock::enter(int lane) {
  in_program_ = true;
  lane_ = lane;
}

Time& Clock::time(World& w) {
  if (!in_program(w)) {
    return mine_;
  }
  return w.lanes.are_on() ? w.lanes.clock(lane_) : w.program;
}

Time Clock::now(World& w) {
  mine_ = std::max(mine_, w.program);
  return time(w);
}

void Clock::advance_to(World& w, Time time_) {
  const Time before = now(w);
  time(w) = std::max(before, time_);
}

void Clock::begin(Time time) {
  worked_until_ = time;
}

void Clock::spend(World& w, Time takes) {
  const Time before = std::exchange(worked_until_, worked_until_ + takes);
  time(w) = now(w) + takes;
  if (!in_program(w) && config().driver_lock) {
    if (holds_driver_) {
      w.driver.hold(before, worked_until_);
    }
    w.driver.advance(number_, worked_until_);
    w.driver_changed.notify_all();
  }
}

void Clock::hold_driver(bool holds) {
  holds_driver_ = holds;
}

Clock& clock() {
  thread_local Clock mine;
  return mine;
}

}  // namespace simcuda::timing
