#include <ATen/cuda/detail/LMSPolicy.h>

#include <algorithm>
#include <limits>
#include <tuple>

namespace at::cuda::lms {
namespace {

// Cost of evicting a set of pages: how recently its most recent one was used,
// then the bytes to move.
using Cost = std::tuple<uint64_t, size_t>;
constexpr Cost kInfinite{
    std::numeric_limits<uint64_t>::max(),
    std::numeric_limits<size_t>::max()};

bool is_movable(const Range& range) {
  return !range.block || (range.block->page && range.block->page->evictable);
}

// A segment serves either small or large requests; which of the two shows in
// the size of any of its blocks. One without blocks serves both kinds here:
// the allocator may give it back to the driver and take it anew.
bool serves(const Segment& segment, const Request& request) {
  if (segment.is_private || segment.stream != request.stream) {
    return false;
  }
  if (segment.blocks.empty()) {
    return true;
  }
  const bool small = segment.blocks.begin()->second.size <= kSmallSize;
  return small == (request.bytes <= kSmallSize);
}

struct Window {
  Cost cost = kInfinite;
  std::vector<Page*> pages;
};

// The cheapest run of movable ranges that starts at `first`.
Window window_from(
    const std::vector<Range>& ranges,
    size_t first,
    size_t bytes,
    const Cost& bound) {
  Window window;
  Cost cost{0, 0};
  size_t size = 0;
  for (size_t i = first; i < ranges.size() && is_movable(ranges[i]); ++i) {
    size += ranges[i].size;
    if (ranges[i].block) {
      Page* page = ranges[i].block->page;
      cost = {
          std::max(std::get<0>(cost), page->last_use),
          std::get<1>(cost) + page->bytes};
      window.pages.push_back(page);
    }
    if (cost >= bound) {
      return {};
    }
    if (size >= bytes) {
      window.cost = cost;
      return window;
    }
  }
  return {};
}

class LeastRecentlyUsed final : public Policy {
 public:
  void on_operator(
      Page* const* pages,
      size_t count,
      std::vector<Page*>& /*fetch*/) override {
    ++now_;
    for (size_t i = 0; i < count; ++i) {
      pages[i]->last_use = now_;
    }
  }

  std::vector<Page*> choose_window(const Layout& layout, const Request& request)
      override {
    Window best;
    for (const auto& [address, segment] : layout.segments()) {
      if (!serves(segment, request) || segment.size < request.bytes) {
        continue;
      }
      const auto ranges = ranges_of(address, segment);
      for (size_t i = 0; i < ranges.size(); ++i) {
        auto window = window_from(ranges, i, request.bytes, best.cost);
        if (!window.pages.empty() && window.cost < best.cost) {
          best = std::move(window);
        }
      }
    }
    return std::move(best.pages);
  }

  std::vector<Page*> choose_segments(const Layout& layout, size_t bytes)
      override {
    struct Candidate {
      Cost cost{0, 0};
      size_t size = 0;
      std::vector<Page*> pages;
    };
    std::vector<Candidate> candidates;
    size_t free = 0;
    for (const auto& [address, segment] : layout.segments()) {
      const auto ranges = ranges_of(address, segment);
      if (segment.is_private ||
          !std::all_of(ranges.begin(), ranges.end(), is_movable)) {
        continue;
      }
      auto whole = window_from(ranges, 0, segment.size, kInfinite);
      if (whole.pages.empty()) {
        free += segment.size; // the allocator releases it by itself
      } else {
        candidates.push_back(
            {whole.cost, segment.size, std::move(whole.pages)});
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

 private:
  uint64_t now_ = 0; // operators seen
};

} // namespace

std::unique_ptr<Policy> make_least_recently_used_policy() {
  return std::make_unique<LeastRecentlyUsed>();
}

} // namespace at::cuda::lms
