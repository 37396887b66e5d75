#pragma once

#include <ATen/cuda/detail/LMSCorePolicy.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace at::cuda::lms {

// What it costs to take the memory of a page, or of a set of pages: the latest
// use of one, then the bytes that are copied until the last of them is free and
// those that are copied because of it. Before all that, bytes that should be
// evicted last: see Note [Hints].
struct Cost {
  uint64_t last_use = 0;
  size_t wait = 0;
  size_t traffic = 0;
  size_t kept = 0;

  bool operator<(const Cost& other) const {
    if (kept != other.kept) {
      return kept < other.kept;
    }
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
  virtual bool may_evict(const Page& /*page*/) const {
    return true;
  }
};

// A copy to the host takes so many times longer than one within the device.
constexpr size_t kCostOfCopy = 16;

// Bytes to be copied to the host until the draining memory is free. `drained`:
// see Request.
inline size_t bytes_until_drained(const Page& page, uint64_t drained) {
  return page.drained_at > drained ? page.drained_at - drained : 0;
}

// See Request::patience.
inline bool may_wait_for(const Page& page, const Request& request) {
  return bytes_until_drained(page, request.drained) <= request.patience;
}

// Note [Bounded search]
// ~~~~~~~~~~~~~~~~~~~~~
// A search of all memory takes time in proportion to the number of blocks, and
// operators would get slower as storages get more. So a search looks at a few
// dozen blocks only and takes the best of them, which is hardly worse than the
// best of all. It starts where the last search ended (the *hand*), so that no
// part of the memory is forgotten. Where it finds nothing, the request of an
// operator searches on, and a fetch ahead of its use is left for later. Memory
// of up to some hundred blocks is always searched as a whole.

// The cheapest contiguous run of free ranges and pages that can serve the
// request. Free neighbours count: they cost nothing. With a hand the cheapest
// of one bounded search; null: of all. The meaning of the result is
// Policy::choose_window's.
std::vector<Page*> cheapest_window(
    const Layout& layout,
    const Request& request,
    const Ranking& ranking,
    uintptr_t* hand);

// Note [Memory in pieces]
// ~~~~~~~~~~~~~~~~~~~~~~~
// The cheapest window of a large request is hardly ever cheap: between pages
// that can be made again there lie others, which have to be copied while the
// operator waits. But what is dropped need not lie side by side. A copy within
// the device takes a small part of the time of one to the host, so it is often
// better to drop pages anywhere, until all free memory together is enough, and
// then to join it (Relocator::make_gap). Where it cannot be joined, there is
// more room for the window that is chosen next.

// The pages that can be made again and cost least for their size, as many as it
// takes until the request's bytes are free, wherever they lie. None if they and
// what has to be moved cost as much as copies of `most` bytes. Of as much
// memory as one search looks at, from the hand on, which stays.
std::vector<Page*> cheapest_pieces(
    const Layout& layout,
    const Request& request,
    const Ranking& ranking,
    uintptr_t hand,
    size_t most);

// How an extent of memory is made free: its pages move to free ranges outside.
// Draining memory does not move. It is given up, inside of the extent and also
// outside where the pages that move need its room.
struct Clearing {
  Extent extent;
  std::vector<Page*> pages; // those to move largest first
  // Outside there is memory enough for them, but not a gap for each: gaps have
  // to be joined first, by clearings in their turn.
  bool is_tight = false;
};

// The clearing for the request that moves and waits for the fewest bytes. It
// has no pages if there is none: the free ranges outside are too small for what
// is inside. A tight clearing is the last resort, for a large request that
// keeps no memory for another one, and its pages are smaller than the request.
// The search is bounded as that for a window.
Clearing cheapest_clearing(
    const Layout& layout,
    const Request& request,
    uintptr_t* hand);

// The cheapest whole segments of at least `bytes` in total, see
// Policy::choose_segments.
std::vector<Page*> cheapest_segments(
    const Layout& layout,
    size_t bytes,
    const Ranking& ranking);

// The pages of whole segments, of so many bytes together or as many as there
// are; of expandable segments, which go back in pieces, any pages.
std::vector<Page*> pages_of_segments(const Layout& layout, size_t bytes);

} // namespace at::cuda::lms
