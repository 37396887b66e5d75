#pragma once

#include "trace.h"

#include <cstddef>
#include <vector>

namespace lms_replay {

struct Interval {
  Time begin;
  Time end;
};

// The copies of one direction, one after the other.
class CopyEngine {
 public:
  explicit CopyEngine(double bandwidth) : bandwidth_(bandwidth) {}

  // Copies as soon as the engine is free, but not before `earliest`.
  Interval copy(size_t bytes, Time earliest);
  // When all copies have ended.
  Time free() const {
    return copies_.empty() ? 0 : copies_.back().end;
  }
  size_t count() const {
    return copies_.size();
  }
  // How long the copies after the first `skipped` took, and the part of that
  // within `computing`, whose intervals are in order.
  Time duration(size_t skipped) const;
  Time hidden(size_t skipped, const std::vector<Interval>& computing) const;

 private:
  double bandwidth_; // bytes per second
  std::vector<Interval> copies_;
};

} // namespace lms_replay
