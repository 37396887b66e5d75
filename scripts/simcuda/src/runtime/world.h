// What timing.cpp is about: the devices' simulation, and the clocks of the
// host's threads.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "driver_lock.h"
#include "lanes.h"
#include "simulation.h"
#include "timeline.h"

namespace simcuda::timing {

struct World {
  std::mutex mutex;
  DriverLock driver;
  std::condition_variable driver_changed;
  // The last device is the host, which has a stream if it has work of its own.
  Simulation simulation;
  int host_stream = -1;
  Time program = 0;  // the program's clock; with lanes, where all of them are
  Lanes lanes;
  std::array<std::array<Time, kParts>, 16> busy{};
  Timeline timeline;
  // By communicator, where its last collective is.
  std::map<const void*, Point> collectives;

  World();
  // Lets everything happen before which the program cannot queue anything.
  void advance();
};

World& world();

// One thread's clock. All functions need the world's lock.
class Clock {
 public:
  Clock();

  Time now(World& w);
  void advance_to(World& w, Time time);
  void begin(Time time);
  void spend(World& w, Time time);
  void hold_driver(bool holds);
  // From the thread's start on, without any wait.
  Time worked_until() const {
    return worked_until_;
  }
  // The thread is one of the program's, and in a lane if there are any.
  void join_program(const World& w);
  // Whether the thread has its clock in common with others of the program.
  bool in_program(const World& w) const;
  int number() const {
    return number_;
  }

  // The lane that the thread is in, -1 for none. It stays there, whatever
  // device it turns to, until the lane is stopped or the thread enters another.
  int lane(const World& w) const;
  void enter(int lane);

 private:
  Time& time(World& w);

  const int number_;
  bool in_program_;
  int lane_ = -1;
  Time mine_ = 0;
  Time worked_until_ = 0;
  bool holds_driver_ = false;
};

// The calling thread's.
Clock& clock();

}  // namespace simcuda::timing
