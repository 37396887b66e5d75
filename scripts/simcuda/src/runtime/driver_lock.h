// Who holds the driver's lock, and when, in virtual time. To page-lock memory,
// threads in the background hold it, and the program's calls wait meanwhile.
// Knows nothing of CUDA, of threads or of real time.
//
// When such a thread is run is a matter of real time. So that each run gives
// the same numbers, memory that is about to be page-locked is announced, and
// the program goes on only as far as it is known what becomes of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "simulation.h"

namespace simcuda {

class DriverLock {
 public:
  // From `time` on, some thread works on this memory until it is page-locked.
  void announce(uintptr_t begin, size_t bytes, Time time);
  // It is `thread` that works on the memory, if that was announced.
  void take_on(int thread, uintptr_t address);
  // What the thread does until `time` is known.
  void advance(int thread, Time time);
  // The thread has page-locked so much of the memory.
  void complete(uintptr_t address, size_t bytes);
  // What was announced at the address, or taken on by the thread, will not be;
  // nor what is not known at `time`.
  void give_up(uintptr_t address);
  void give_up(int thread);
  void give_up_unknown(Time time);

  // A thread has the lock in between.
  void hold(Time from, Time until);

  // Whether it is known who has the lock at `time`.
  bool knows(Time time) const;
  // When a call that begins at `time` gets the lock. None will begin earlier.
  Time free_from(Time time);

 private:
  struct Work {
    uintptr_t begin;
    uintptr_t end;
    size_t left;  // bytes that are not page-locked yet
    int thread;   // 0: none has taken it on
    Time known_until;
  };
  struct Hold {
    Time from;
    Time until;
  };

  std::vector<Work> works_;
  std::vector<Hold> holds_;
};

}  // namespace simcuda
