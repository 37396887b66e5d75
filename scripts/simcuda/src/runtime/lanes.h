// Lanes: in timed mode, devices each with a clock of the host of their own, as
// if each had a host that queues its work. Of the threads of all lanes one goes
// on at a time, in real time too: that of the lane that is earliest in virtual
// time. So nothing happens in the simulation before it is known what all lanes
// have queued by then, and each run gives the same numbers.
//
// A lane gives way to an earlier one before an operator and where it waits, but
// only if its thread holds no mutexes, which the others may need to come that
// far: PyTorch has some of the process's while it calls operators.
//
// All functions need the lock of the world (world.h), which is free while they
// block, and Python's lock with it. A lane has its device's number.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "simulation.h"

namespace simcuda {

class Lanes {
 public:
  using Guard = std::unique_lock<std::mutex>;

  Lanes(Simulation& simulation, int devices);

  // Whether any is started.
  bool are_on() const {
    return started_ > 0;
  }
  bool is_started(int lane) const;
  // Of a lane that has been started.
  Time& clock(int lane);
  // Where the lane's clock is that is furthest.
  Time latest() const;

  // From now on threads of the lane work, from `time` on if it is not later.
  void start(int lane, Time time);
  void stop(int lane);
  // Between these two no lane gets a turn, so that several start at once.
  void pause();
  void resume();

  // Lets everything happen before which no lane can queue anything.
  void advance();
  // Blocks until it is the lane's turn.
  void enter(int lane, Guard& guard);
  // Lets lanes go first that are earlier by `slack` or more.
  void give_way(int lane, Time slack, Guard& guard);
  // Moves the lane's clock to where the point is reached, letting others go on.
  void wait(int lane, Point point, Guard& guard);

  // Locks in virtual time: who comes first by its clock gets one first, and
  // comes out no earlier than the one before gave it back. -1 for a thread
  // of no lane, which comes when it does in real time.
  // Taken: by nobody who is in a lane.
  int make_lock(bool is_taken);
  void acquire(int lock, int lane, Guard& guard);
  // False when nobody has the lock.
  bool release(int lock, int lane, Guard& guard);

  // For so long nothing may happen, in real time; then there is a word about
  // it on stderr.
  std::chrono::duration<double> patience{60};

 private:
  enum class State { Stopped, Ready, WaitsForPoint, WaitsForLock };
  struct Lane {
    State state = State::Stopped;
    Time clock = 0;
    Point point{};  // that it waits for
  };
  // Lives while its thread waits.
  struct Request {
    int lane;
    bool is_granted = false;
  };
  struct Lock {
    bool is_taken = false;
    int lane = -1;  // that has taken it
    std::deque<Request*> requests;
  };

  Lane& at(int lane) {
    return lanes_[static_cast<size_t>(lane)];
  }
  int earliest() const;
  void give_turn(int lane);
  void pass_turn_on();
  void make_ready(int lane, Time time);
  void hold_up_requests(const Lock& lock);
  void block(Guard& guard, const std::function<bool()>& is_over);
  void complain() const;

  Simulation& simulation_;
  std::vector<Lane> lanes_;  // by device
  int started_ = 0;          // how many
  int turn_ = -1;            // whose it is; -1: nobody can go on
  int paused_ = 0;           // how many want it
  uint64_t calls_ = 1;       // of threads whose turn it is
  uint64_t told_ = 0;        // how many there were at the last word on stderr
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Lock>> locks_;
};

}  // namespace simcuda
