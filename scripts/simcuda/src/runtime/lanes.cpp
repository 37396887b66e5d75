#include "lanes.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "python_lock.h"

namespace simcuda {

Lanes::Lanes(Simulation& simulation, int devices)
    : simulation_(simulation), lanes_(static_cast<size_t>(devices)) {}

bool Lanes::is_started(int lane) const {
  return lanes_[static_cast<size_t>(lane)].state != State::Stopped;
}

Time& Lanes::clock(int lane) {
  return at(lane).clock;
}

Time Lanes::latest() const {
  Time latest = 0;
  for (const Lane& lane : lanes_) {
    latest = std::max(latest, lane.clock);
  }
  return latest;
}

void Lanes::start(int lane, Time time) {
  if (is_started(lane)) {
    return;
  }
  ++started_;
  make_ready(lane, time);
}

void Lanes::stop(int lane) {
  if (!is_started(lane)) {
    return;
  }
  --started_;
  at(lane).state = State::Stopped;
  pass_turn_on();
}

void Lanes::pause() {
  ++paused_;
}

void Lanes::resume() {
  --paused_;
  pass_turn_on();
}

void Lanes::advance() {
  bool has_changed = true;
  while (has_changed) {
    has_changed = false;
    Time limit = Simulation::kNever;
    std::vector<Point> points;
    for (const Lane& lane : lanes_) {
      if (lane.state == State::Ready) {
        limit = std::min(limit, lane.clock);
      } else if (lane.state == State::WaitsForPoint) {
        points.push_back(lane.point);
      }
    }
    if (limit == Simulation::kNever && points.empty()) {
      return;
    }
    simulation_.run_to_first(limit, points);
    for (Lane& lane : lanes_) {
      if (lane.state == State::WaitsForPoint && simulation_.done(lane.point)) {
        lane.state = State::Ready;
        lane.clock = std::max(lane.clock, simulation_.now());
        has_changed = true;
      }
    }
  }
}

void Lanes::enter(int lane, Guard& guard) {
  block(guard, [this, lane] { return turn_ == lane || !is_started(lane); });
  ++calls_;
}

void Lanes::give_way(int lane, Time slack, Guard& guard) {
  enter(lane, guard);
  while (is_started(lane)) {
    advance();
    const int first = earliest();
    if (first == lane || at(first).clock + slack > at(lane).clock) {
      return;
    }
    give_turn(first);
    enter(lane, guard);
  }
}

void Lanes::wait(int lane, Point point, Guard& guard) {
  enter(lane, guard);
  advance();
  if (simulation_.done(point) || !is_started(lane)) {
    return;
  }
  at(lane).state = State::WaitsForPoint;
  at(lane).point = point;
  pass_turn_on();
  enter(lane, guard);
}

int Lanes::make_lock(bool is_taken) {
  locks_.push_back(std::make_unique<Lock>());
  locks_.back()->is_taken = is_taken;
  return static_cast<int>(locks_.size()) - 1;
}

void Lanes::acquire(int number, int lane, Guard& guard) {
  Lock& lock = *locks_[static_cast<size_t>(number)];
  if (lane >= 0) {
    give_way(lane, 0, guard);
  }
  if (!lock.is_taken) {
    lock.is_taken = true;
    lock.lane = lane;
    return;
  }
  Request request{lane};
  lock.requests.push_back(&request);
  hold_up_requests(lock);
  block(guard, [&request] { return request.is_granted; });
  if (lane >= 0) {
    enter(lane, guard);
  }
}

bool Lanes::release(int number, int lane, Guard& guard) {
  Lock& lock = *locks_[static_cast<size_t>(number)];
  if (lane >= 0) {
    give_way(lane, 0, guard);
  }
  if (!lock.is_taken) {
    return false;
  }
  if (lock.requests.empty()) {
    lock.is_taken = false;
    return true;
  }
  Request& next = *lock.requests.front();
  lock.requests.pop_front();
  next.is_granted = true;
  lock.lane = next.lane;
  if (next.lane >= 0 && is_started(next.lane)) {
    make_ready(next.lane, lane >= 0 ? at(lane).clock : simulation_.now());
  }
  hold_up_requests(lock);
  changed_.notify_all();
  return true;
}

// Lanes that wait for a lock do not go on; but for the one that has it, where
// another thread is to give it back.
void Lanes::hold_up_requests(const Lock& lock) {
  for (const Request* request : lock.requests) {
    if (request->lane >= 0 && request->lane != lock.lane &&
        at(request->lane).state == State::Ready) {
      at(request->lane).state = State::WaitsForLock;
    }
  }
  pass_turn_on();
}

// The lane that is to go on, -1 when none can.
int Lanes::earliest() const {
  int first = -1;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    if (lanes_[i].state == State::Ready &&
        (first < 0 ||
         lanes_[i].clock < lanes_[static_cast<size_t>(first)].clock)) {
      first = static_cast<int>(i);
    }
  }
  return first;
}

void Lanes::give_turn(int lane) {
  turn_ = lane;
  changed_.notify_all();
}

// If the lane whose turn it is cannot go on: else it keeps the turn.
void Lanes::pass_turn_on() {
  if (turn_ < 0 || at(turn_).state != State::Ready) {
    advance();
    give_turn(paused_ > 0 ? -1 : earliest());
  }
}

void Lanes::make_ready(int lane, Time time) {
  at(lane).state = State::Ready;
  at(lane).clock = std::max(at(lane).clock, time);
  pass_turn_on();
}

void Lanes::block(Guard& guard, const std::function<bool()>& is_over) {
  while (!is_over()) {
    guard.unlock();  // who has Python's lock may wait for this one
    {
      const PythonReleased python;
      guard.lock();
      const uint64_t before = calls_;
      if (!changed_.wait_for(guard, patience, is_over) && calls_ == before &&
          told_ != calls_) {
        told_ = calls_;
        complain();
      }
      guard.unlock();
    }
    guard.lock();
  }
}

void Lanes::complain() const {
  std::string waiting;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    if (lanes_[i].state != State::Stopped && static_cast<int>(i) != turn_) {
      waiting += " " + std::to_string(i);
    }
  }
  const std::string cause =
      turn_ < 0 ? "none can go on"
                : "it is the turn of " + std::to_string(turn_) +
                      ", whose threads do not call (they may wait for another "
                      "lane where the simulation does not see it)";
  std::fprintf(stderr, "simcuda: lanes%s wait in virtual time, and %s\n",
               waiting.c_str(), cause.c_str());
  std::fflush(stderr);
}

}  // namespace simcuda
