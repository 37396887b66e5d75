#pragma once

#include <ATen/cuda/detail/LMSCoreCycle.h>

#include <vector>

namespace at::cuda::lms {

// Note [Writing back early]
// ~~~~~~~~~~~~~~~~~~~~~~~~~
// A page that is to be evicted after an operator that only reads it has had its
// bytes since an operator before. So its copy to the host need not wait for the
// last read: it is *saved*, written back while it stays, and its memory is free
// as soon as it is evicted. Between the two the link often has time, as in a
// backward pass, whose gradients are read at the end by the optimizer. The plan
// asks for a save where the copies before have ended by then, so that no
// eviction waits for it. It goes by the operators' times, as in Note [Copy or
// make again]; where bytes are only copied nothing is timed, and the plan asks
// as soon as the page has its bytes.
//
// A page that dies need not come back. If it can be saved in time that is free,
// to evict it costs nothing, so it goes before all others: gradients that the
// optimizer is done with make room for its state.
class Saving {
 public:
  // `copy_ns`: nanoseconds per byte.
  Saving(Cycle& cycle, double copy_ns) : cycle_(cycle), copy_ns_(copy_ns) {}

  // By interval: its page dies later, and to evict it until then costs nothing.
  std::vector<char> free_deaths() const;
  // Where pages are to be saved: by position, the intervals that they are in.
  std::vector<std::vector<uint32_t>> run();

 private:
  // What has to be copied before it is evicted.
  struct Wanted {
    uint64_t until; // operators from the beginning
    uint32_t number; // of the interval in which it is evicted
    bool operator<(const Wanted& other) const {
      return until > other.until; // soonest first
    }
  };
  uint64_t ns(const Interval& it) const;
  uint32_t active_at(uint32_t number, uint32_t position) const;

  Cycle& cycle_;
  const double copy_ns_;
};

} // namespace at::cuda::lms
