#include "driver_lock.h"

#include <algorithm>

namespace simcuda {
namespace {

template <typename T, typename Condition>
void remove_if(std::vector<T>& all, Condition condition) {
  all.erase(std::remove_if(all.begin(), all.end(), condition), all.end());
}

}  // namespace

void DriverLock::announce(uintptr_t begin, size_t bytes, Time time) {
  works_.push_back({begin, begin + bytes, bytes, 0, time});
}

void DriverLock::take_on(int thread, uintptr_t address) {
  for (Work& work : works_) {
    if (work.begin <= address && address < work.end) {
      work.thread = thread;
    }
  }
}

void DriverLock::advance(int thread, Time time) {
  for (Work& work : works_) {
    if (work.thread == thread) {
      work.known_until = time;
    }
  }
}

void DriverLock::complete(uintptr_t address, size_t bytes) {
  for (Work& work : works_) {
    if (work.begin <= address && address < work.end) {
      work.left -= std::min(work.left, bytes);
    }
  }
  remove_if(works_, [](const Work& work) { return work.left == 0; });
}

void DriverLock::give_up(uintptr_t address) {
  remove_if(works_, [address](const Work& work) {
    return work.begin <= address && address < work.end;
  });
}

void DriverLock::give_up(int thread) {
  remove_if(works_,
            [thread](const Work& work) { return work.thread == thread; });
}

void DriverLock::give_up_unknown(Time time) {
  remove_if(works_,
            [time](const Work& work) { return work.known_until <= time; });
}

void DriverLock::hold(Time from, Time until) {
  holds_.push_back({from, until});
}

bool DriverLock::knows(Time time) const {
  return std::all_of(works_.begin(), works_.end(), [time](const Work& work) {
    return time < work.known_until;
  });
}

Time DriverLock::free_from(Time time) {
  remove_if(holds_, [time](const Hold& hold) { return hold.until <= time; });
  for (const Hold& hold : holds_) {
    if (hold.from <= time) {
      return hold.until;
    }
  }
  return time;
}

}  // namespace simcuda
