#pragma once

#include <ATen/cuda/detail/LMSPolicy.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace at::cuda::lms {

// What it costs to take the memory of a page, or of a set of pages: the latest
// use of one, then the bytes that are copied until the last of them is free and
// those that are copied because of it.
struct Cost {
  uint64_t last_use = 0;
  size_t wait = 0;
  size_t traffic = 0;

  bool operator<(const Cost& other) const {
    return last_use != other.last_use
        ? last_use < other.last_use
        : wait + traffic < other.wait + other.traffic;
  }
};

// How a policy ranks the pages.
class Ranking {
 public:
  virtual ~Ranking() = default;
  virtual Cost cost_of(const Page& page) const = 0;
  // False if the page must stay although it is evictable.
  virtual bool may_leave(const Page& /*page*/) const {
    return true;
  }
};

// The cheapest contiguous run of free ranges and pages that can serve the
// request. Free neighbours count: they cost nothing. Linear in the number of
// blocks. The meaning of the result is Policy::choose_window's.
std::vector<Page*> cheapest_window(
    const Layout& layout,
    const Request& request,
    const Ranking& ranking);

// Pages to move to free ranges outside of [begin, end), so that this becomes
// free. Pages of memory that is being left (id 0) just go.
struct Clearing {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  std::vector<Page*> pages; // largest first
};

// The clearing for the request that moves the fewest bytes. No pages: there is
// none, that is, the free ranges outside are too small for what is inside.
Clearing cheapest_clearing(const Layout& layout, const Request& request);

// The cheapest whole segments of at least `bytes` in total, see
// Policy::choose_segments.
std::vector<Page*> cheapest_segments(
    const Layout& layout,
    size_t bytes,
    const Ranking& ranking);

} // namespace at::cuda::lms
