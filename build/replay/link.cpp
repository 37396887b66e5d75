#include "link.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace lms_replay {
namespace {

constexpr double kSecond = 1e12; // picoseconds

} // namespace

Link::Link(const Machine& machine)
    : bandwidths_{machine.in_bandwidth, machine.out_bandwidth, machine.memory_bandwidth / 2}, // it reads and writes
      latencies_{machine.latency, machine.latency, machine.launch},
      together_(std::min(
          1.0,
          machine.both_bandwidth /
              (machine.in_bandwidth + machine.out_bandwidth))) {}

CopyId Link::queue(
    Direction direction,
    bool is_urgent,
    size_t bytes,
    Time earliest,
    CopyIds of_bytes,
    CopyIds of_memory) {
  const auto index = static_cast<size_t>(direction);
  const double transfer =
      static_cast<double>(bytes) / bandwidths_[index] * kSecond;
  Copy copy;
  copy.direction = direction;
  copy.duration = std::max<Time>(latencies_[index] + std::llround(transfer), 1);
  copy.earliest = std::max(earliest, now_);
  copy.of_bytes = std::move(of_bytes);
  copy.of_memory = std::move(of_memory);
  copies_.push_back(std::move(copy));
  engines_[index].lanes[is_urgent ? 1 : 0].queue.push_back(copies_.size() - 1);
  return copies_.size() - 1;
}

void Link::run_to(Time time) {
  while (step(time)) {
  }
  now_ = std::max(now_, time);
}

bool Link::has_ended(CopyId copy, Time time) const {
  return copy == kNoCopy || copies_[copy].end <= time;
}

Time Link::end_of(CopyId copy) {
  if (copy == kNoCopy) {
    return 0;
  }
  while (copies_[copy].end == kUnknown) {
    step(kUnknown);
  }
  return copies_[copy].end;
}

Time Link::waited_for_memory(CopyId copy) const {
  return copy == kNoCopy ? 0 : copies_[copy].waited_for_memory;
}

std::array<std::vector<Interval>, 2> Link::intervals(size_t skipped) {
  while (step(kUnknown)) {
  }
  std::array<std::vector<Interval>, 2> intervals;
  for (size_t i = skipped; i < copies_.size(); ++i) {
    const Copy& copy = copies_[i];
    if (copy.direction != Direction::kAside) {
      intervals[static_cast<size_t>(copy.direction)].push_back(
          {copy.begin, copy.end});
    }
  }
  return intervals;
}

// Goes to the next time at which a copy begins or ends; false if that is after
// the limit, or never.
bool Link::step(Time limit) {
  const Time next = next_time();
  if (next > limit || next == kUnknown) {
    return false;
  }
  now_ = std::max(now_, next);
  for (Engine& engine : engines_) {
    if (engine.active != kNoCopy && engine.ends <= now_) {
      finish(engine);
    }
  }
  for (Engine& engine : engines_) {
    if (next_begin(engine) <= now_) {
      start(engine);
    }
  }
  set_speeds();
  return true;
}

void Link::start(Engine& engine) {
  // The one that has been ready for longest.
  auto& [others, urgent] = engine.lanes;
  engine.busy = ready(urgent) < ready(others) ? &urgent : &others;
  engine.active = engine.busy->queue[engine.busy->next++];
  Copy& copy = copies_[engine.active];
  copy.begin = now_;
  const Time without_memory =
      std::max({copy.earliest, engine.free, ends_of(copy.of_bytes)});
  copy.waited_for_memory = now_ - std::min(now_, without_memory);
  engine.since = now_;
  engine.left = static_cast<double>(copy.duration);
  engine.speed = 1;
  engine.ends = now_ + copy.duration;
}

void Link::finish(Engine& engine) {
  copies_[engine.active].end = now_;
  engine.active = kNoCopy;
  engine.free = engine.busy->free = now_;
}

void Link::set_speeds() {
  const bool both =
      engines_[0].active != kNoCopy && engines_[1].active != kNoCopy;
  const double speed = both ? together_ : 1;
  for (Engine* to_or_from : {&engines_[0], &engines_[1]}) {
    Engine& engine = *to_or_from;
    if (engine.active == kNoCopy || engine.speed == speed) {
      continue;
    }
    engine.left -= static_cast<double>(now_ - engine.since) * engine.speed;
    engine.since = now_;
    engine.speed = speed;
    engine.ends = now_ + std::llround(std::max(engine.left, 0.0) / speed);
  }
}

Time Link::ends_of(const CopyIds& copies) const {
  Time last = 0;
  for (const CopyId copy : copies) {
    last = std::max(last, copy == kNoCopy ? 0 : copies_[copy].end);
  }
  return last;
}

Time Link::ready(const Lane& lane) const {
  if (lane.next == lane.queue.size()) {
    return kUnknown;
  }
  const Copy& copy = copies_[lane.queue[lane.next]];
  return std::max(
      {copy.earliest,
       lane.free,
       ends_of(copy.of_bytes),
       ends_of(copy.of_memory)});
}

// When the engine begins its next copy; kUnknown if that hangs on another.
Time Link::next_begin(const Engine& engine) const {
  if (engine.active != kNoCopy) {
    return kUnknown;
  }
  const Time first = std::min(ready(engine.lanes[0]), ready(engine.lanes[1]));
  return std::max(first, engine.free);
}

Time Link::next_time() const {
  Time next = kUnknown;
  for (const Engine& engine : engines_) {
    const Time end = engine.active == kNoCopy ? kUnknown : engine.ends;
    next = std::min({next, end, next_begin(engine)});
  }
  return next;
}

} // namespace lms_replay
