// How much real time goes to the simulation itself.
#pragma once

#include <cstdint>

namespace simcuda {

// Counts the time from its construction to its destruction while that is
// metered; of nested ones, the outermost.
class OwnTime {
 public:
  OwnTime();
  OwnTime(const OwnTime&) = delete;
  OwnTime& operator=(const OwnTime&) = delete;
  ~OwnTime();

 private:
  const int64_t begin_;  // nanoseconds, or that it is not counted
};

}  // namespace simcuda
