#include "cleared_pages.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>

#include "memory.h"

namespace simcuda {
namespace {

struct Cleared {
  std::mutex mutex;
  std::map<uintptr_t, uintptr_t> ranges;  // ends by begin; they do not overlap

  size_t take(uintptr_t begin, uintptr_t end) {
    size_t taken = 0;
    auto range = ranges.upper_bound(begin);
    if (range != ranges.begin()) {
      --range;
    }
    while (range != ranges.end() && range->first < end) {
      const auto [first, last] = *range;
      const uintptr_t from = std::max(first, begin);
      const uintptr_t to = std::min(last, end);
      if (from >= to) {
        ++range;
        continue;
      }
      taken += to - from;
      range = ranges.erase(range);
      if (first < from) {
        ranges.emplace(first, from);
      }
      if (to < last) {
        range = ranges.emplace(to, last).first;
      }
    }
    return taken;
  }
};

Cleared& cleared() {
  static Cleared* c = new Cleared;
  return *c;
}

}  // namespace

void note_cleared(const void* begin, size_t bytes) {
  std::lock_guard<std::mutex> lock(cleared().mutex);
  cleared().take(number(begin), number(begin) + bytes);
  cleared().ranges[number(begin)] = number(begin) + bytes;
}

size_t take_cleared(const void* begin, size_t bytes) {
  std::lock_guard<std::mutex> lock(cleared().mutex);
  return cleared().take(number(begin), number(begin) + bytes);
}

}  // namespace simcuda
