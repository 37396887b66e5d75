#include <ATen/cuda/detail/LMSCoreSpace.h>

#include <ATen/cuda/detail/LMSCoreRuns.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace at::cuda::lms {
namespace {

struct Window {
  std::optional<Cost> cost;
  std::vector<Page*> pages;
};

void improve(
    Window& best,
    const std::vector<Range>& ranges,
    size_t bytes,
    const Ranking& ranking) {
  for_each_run(ranges, bytes, ranking, [&](const Run& run, size_t last) {
    if (!run.has_pages() || (best.cost && !(run.cost() < *best.cost))) {
      return; // a free range alone is the allocator's affair
    }
    best.cost = run.cost();
    best.pages.clear();
    for (size_t k = run.begin(); k <= last; ++k) {
      if (ranges[k].block) {
        best.pages.push_back(ranges[k].block->page);
      }
    }
  });
}

Window search(
    const Shelf& shelf,
    const Request& request,
    const Ranking& ranking,
    uintptr_t* hand) {
  Window best;
  Sweep sweep(shelf, request, hand);
  while (sweep.next()) {
    improve(best, sweep.ranges(), request.bytes, ranking);
    const bool has_found = best.cost && best.cost->kept == 0;
    if (sweep.has_looked_enough() && (has_found || request.ahead)) {
      break;
    }
  }
  return best;
}

} // namespace

std::vector<Page*> cheapest_window(
    const Layout& layout,
    const Request& request,
    const Ranking& ranking,
    uintptr_t* hand) {
  const Shelf& shelf = layout.shelf(request.bytes, request.stream);
  Window best = search(shelf, request, ranking, hand);
  if (!best.cost && hand && !request.ahead) {
    // What there is may lie across the bounds of pieces.
    best = search(shelf, request, ranking, nullptr);
  }
  return std::move(best.pages);
}

std::vector<Page*> cheapest_pieces(
    const Layout& layout,
    const Request& request,
    const Ranking& ranking,
    uintptr_t hand,
    size_t most) {
  const Shelf& shelf = layout.shelf(request.bytes, request.stream);
  std::vector<Page*> pages;
  Sweep sweep(shelf, request, &hand);
  while (sweep.next()) {
    for (const Range& range : sweep.ranges()) {
      if (range.block && is_movable(range, ranking) &&
          range.block->page->gain > 0 &&
          ranking.cost_of(*range.block->page).kept == 0) {
        pages.push_back(range.block->page);
      }
    }
    if (sweep.has_looked_enough()) {
      break;
    }
  }
  std::stable_sort(
      pages.begin(), pages.end(), [](const Page* a, const Page* b) {
        return a->gain > b->gain;
      });
  size_t free = shelf.free;
  size_t cost = request.bytes / kCostOfCopy;
  size_t count = 0;
  for (; count < pages.size() && free < request.bytes; ++count) {
    free += pages[count]->bytes;
    cost += ranking.cost_of(*pages[count]).traffic;
  }
  pages.resize(free >= request.bytes && cost < most ? count : 0);
  return pages;
}

std::vector<Page*> cheapest_segments(
    const Layout& layout,
    size_t bytes,
    const Ranking& ranking) {
  struct Candidate {
    Cost cost;
    size_t size = 0;
    std::vector<Page*> pages;
  };
  std::vector<Candidate> candidates;
  size_t free = 0;
  for (const auto& [address, segment] : layout.segments()) {
    const auto ranges = ranges_of(address, segment);
    if (segment.is_private ||
        !std::all_of(ranges.begin(), ranges.end(), [&](const Range& range) {
          return is_movable(range, ranking);
        })) {
      continue;
    }
    Window whole;
    improve(whole, ranges, segment.size, ranking);
    if (!whole.cost) {
      free += segment.size; // the allocator releases it by itself
    } else {
      candidates.push_back({*whole.cost, segment.size, std::move(whole.pages)});
    }
  }
  std::sort(
      candidates.begin(), candidates.end(), [](const auto& a, const auto& b) {
        return a.cost < b.cost;
      });
  std::vector<Page*> pages;
  for (const auto& candidate : candidates) {
    if (free >= bytes) {
      break;
    }
    free += candidate.size;
    pages.insert(pages.end(), candidate.pages.begin(), candidate.pages.end());
  }
  return free >= bytes ? pages : std::vector<Page*>{};
}

std::vector<Page*> pages_of_segments(const Layout& layout, size_t bytes) {
  std::vector<Page*> pages;
  size_t free = 0;
  for (const auto& [address, segment] : layout.segments()) {
    std::vector<Page*> inside;
    size_t occupied = 0; // bytes of them
    for (const auto& [at, block] : segment.blocks) {
      if (block.page && block.page->evictable) {
        inside.push_back(block.page);
        occupied += block.size;
      }
    }
    const bool is_whole = inside.size() == segment.blocks.size();
    if (free < bytes && !segment.is_private &&
        (is_whole || segment.is_expandable)) {
      free += is_whole ? segment.size : occupied;
      pages.insert(pages.end(), inside.begin(), inside.end());
    }
  }
  return pages;
}

} // namespace at::cuda::lms
