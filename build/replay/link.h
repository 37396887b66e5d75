#pragma once

#include "machine.h"

#include <array>
#include <cstddef>
#include <limits>
#include <vector>

namespace lms_replay {

struct Interval {
  Time begin;
  Time end;
};

// In, out, and from one place on the device to another.
enum class Direction : size_t { kIn, kOut, kAside };
constexpr size_t kDirections = 3;

using CopyId = size_t; // in the order of queueing
constexpr CopyId kNoCopy = ~CopyId{0}; // has always ended, at time 0
using CopyIds = std::vector<CopyId>;

constexpr Time kUnknown = std::numeric_limits<Time>::max();

// What copies: an engine for each direction, which does its copies one after
// the other; urgent ones take turns with the others. Where those to and from
// the host are both at work they may slow each other down, so when a copy ends
// is known only once the clock has come there: who asks makes it run so far.
// Copies must not be queued to begin in its past.
class Link {
 public:
  explicit Link(const Machine& machine);

  // Queues a copy that begins when its engine is free, at `earliest`, and when
  // the copies of the same bytes and those from its target memory have ended.
  CopyId queue(
      Direction direction,
      bool is_urgent,
      size_t bytes,
      Time earliest,
      CopyIds of_bytes,
      CopyIds of_memory);

  void run_to(Time time);
  // By a time that the link has been run to.
  bool has_ended(CopyId copy, Time time) const;
  // Runs until then.
  Time end_of(CopyId copy);
  // What a copy that has ended took.
  Time time_of(CopyId copy) const {
    return copies_[copy].end - copies_[copy].begin;
  }
  // How long a copy that has ended waited for nothing but its memory.
  Time waited_for_memory(CopyId copy) const;

  // When a copy that has ended was done.
  Interval interval_of(CopyId copy) const {
    return {copies_[copy].begin, copies_[copy].end};
  }

  // Copies that were queued.
  size_t count() const {
    return copies_.size();
  }
  // Ends all copies; then the intervals of those to and from the host, from the
  // first `skipped` copies on, in order for each direction.
  std::array<std::vector<Interval>, 2> intervals(size_t skipped);

 private:
  struct Copy {
    Direction direction;
    Time duration; // at full speed
    Time earliest;
    CopyIds of_bytes;
    CopyIds of_memory;
    Time begin = kUnknown;
    Time end = kUnknown;
    Time waited_for_memory = 0;
  };
  struct Lane {
    std::vector<CopyId> queue; // all copies
    size_t next = 0; // in the queue
    Time free = 0; // since when
  };
  struct Engine {
    std::array<Lane, 2> lanes; // the second one of urgent copies
    Lane* busy = nullptr; // whose copy is active
    CopyId active = kNoCopy;
    Time free = 0; // since when
    Time since = 0; // this time, so much was
    double left = 0; // to be done of the active copy at full speed,
    double speed = 1; // and it goes on at this one,
    Time ends = 0; // until then
  };

  bool step(Time limit);
  void start(Engine& engine);
  void finish(Engine& engine);
  void set_speeds();
  // When the copies have ended; kUnknown if one has not.
  Time ends_of(const CopyIds& copies) const;
  // When the lane's next copy could begin; kUnknown if that hangs on another.
  Time ready(const Lane& lane) const;
  Time next_begin(const Engine& engine) const;
  Time next_time() const;

  const std::array<double, kDirections> bandwidths_;
  const std::array<Time, kDirections> latencies_;
  const double together_; // speed to and from the host while both are at work
  std::vector<Copy> copies_;
  std::array<Engine, kDirections> engines_;
  Time now_ = 0;
};

} // namespace lms_replay
