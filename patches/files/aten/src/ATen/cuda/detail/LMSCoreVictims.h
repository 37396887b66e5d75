#pragma once

#include <ATen/cuda/detail/LMSCoreCycle.h>

#include <cstddef>
#include <cstdint>
#include <queue>
#include <tuple>
#include <vector>

namespace at::cuda::lms {

// Walks through a cycle a few times, as if it filled memory of some size, and
// evicts what is idle the longest whenever that is exceeded: the choice of
// victims in Note [Planning an iteration].
class Victims {
 public:
  static constexpr int kCycles = 3; // the second one is the steady state

  // `least`: bytes of a page that may be evicted. `is_free`: by interval, to
  // evict its page costs nothing.
  Victims(
      Cycle& cycle,
      size_t capacity,
      size_t least,
      std::vector<char> is_free);

  // Marks the intervals in which a page is evicted, in the steady state. True
  // if there are any.
  bool run();

 private:
  struct Idle {
    Hint::Turn turn; // see Note [Hints]
    uint64_t end; // next use or death, or never
    uint64_t begin;
    uint32_t number; // of the interval
    bool operator<(const Idle& other) const {
      return std::tie(turn, end, number) <
          std::tie(other.turn, other.end, other.number);
    }
  };
  // The intervals that begin with an operator.
  struct Slots {
    uint32_t first;
    uint32_t end;
  };

  void bring(const Slots& slots);
  void evict(size_t unmanaged);
  void begin(const Slots& slots);
  void end(uint32_t position);

  Cycle& cycle_;
  const size_t capacity_;
  const size_t least_;
  const std::vector<char> is_free_;
  std::priority_queue<Idle> idle_; // farthest next use first
  // Of each interval, when its present turn began, and whether its page is out.
  std::vector<uint64_t> turn_;
  std::vector<char> is_out_;
  std::vector<std::vector<uint32_t>> deaths_; // by position
  uint64_t now_ = 0; // operators since the beginning
  size_t used_ = 0; // bytes
  bool has_victims_ = false;
};

} // namespace at::cuda::lms
