#include <ATen/cuda/detail/LMSSpace.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <optional>
#include <set>
#include <utility>

namespace at::cuda::lms {
namespace {

bool is_movable(const Range& range, const Ranking& ranking) {
  if (!range.block) {
    return true;
  }
  const Page* page = range.block->page;
  return page && page->evictable && ranking.may_leave(*page);
}

// A run of movable ranges that grows at its end and shrinks at its start, and
// knows its cost at any time.
class Run {
 public:
  Run(const std::vector<Range>& ranges, const Ranking& ranking)
      : ranges_(ranges), ranking_(ranking) {}

  void restart(size_t at) {
    begin_ = at;
    size_ = traffic_ = 0;
    pages_ = 0;
    wait_.clear();
    last_use_.clear();
  }

  void extend(size_t at) {
    size_ += ranges_[at].size;
    if (const Page* page = page_at(at)) {
      const Cost cost = ranking_.cost_of(*page);
      traffic_ += cost.traffic;
      ++pages_;
      push(wait_, at, cost.wait);
      push(last_use_, at, cost.last_use);
    }
  }

  // Drops ranges at the start that `bytes` bytes do not need.
  void shrink_to(size_t bytes) {
    while (size_ - ranges_[begin_].size >= bytes) {
      size_ -= ranges_[begin_].size;
      if (const Page* page = page_at(begin_)) {
        traffic_ -= ranking_.cost_of(*page).traffic;
        --pages_;
        pop(wait_, begin_);
        pop(last_use_, begin_);
      }
      ++begin_;
    }
  }

  size_t begin() const {
    return begin_;
  }
  size_t size() const {
    return size_;
  }
  bool has_pages() const {
    return pages_ > 0;
  }
  Cost cost() const {
    return {last_use_.front().second, wait_.front().second, traffic_};
  }

 private:
  // Falling values, each with its place: the first is the maximum of the run.
  using Maxima = std::deque<std::pair<size_t, uint64_t>>;

  static void push(Maxima& maxima, size_t at, uint64_t value) {
    while (!maxima.empty() && maxima.back().second <= value) {
      maxima.pop_back();
    }
    maxima.emplace_back(at, value);
  }
  static void pop(Maxima& maxima, size_t at) {
    if (maxima.front().first == at) {
      maxima.pop_front();
    }
  }
  const Page* page_at(size_t at) const {
    return ranges_[at].block ? ranges_[at].block->page : nullptr;
  }

  const std::vector<Range>& ranges_;
  const Ranking& ranking_;
  size_t begin_ = 0;
  size_t size_ = 0; // bytes of the ranges
  size_t traffic_ = 0; // bytes
  size_t pages_ = 0;
  Maxima wait_;
  Maxima last_use_;
};

struct Window {
  std::optional<Cost> cost;
  std::vector<Page*> pages;
};

// Calls `visit(run, last)` for every minimal run of movable ranges that has at
// least `bytes` bytes; `last` is the place of its last range.
template <class Visit>
void for_each_run(
    const std::vector<Range>& ranges,
    size_t bytes,
    const Ranking& ranking,
    Visit visit) {
  Run run(ranges, ranking);
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (!is_movable(ranges[i], ranking)) {
      run.restart(i + 1);
      continue;
    }
    run.extend(i);
    if (run.size() >= bytes) {
      run.shrink_to(bytes);
      visit(run, i);
    }
  }
}

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

} // namespace

std::vector<Page*> cheapest_window(
    const Layout& layout,
    const Request& request,
    const Ranking& ranking) {
  Window best;
  for (const auto& [address, segment] : layout.segments()) {
    if (segment.size >= request.bytes &&
        segment.serves(request.bytes, request.stream)) {
      improve(best, ranges_of(address, segment), request.bytes, ranking);
    }
  }
  return std::move(best.pages);
}

namespace {

constexpr size_t kClearings = 16; // looked at for room outside, cheapest first

// A copy to the host takes so many times longer than one within the device.
constexpr size_t kCostOfLeaving = 16;

class BytesToMove final : public Ranking {
 public:
  Cost cost_of(const Page& page) const override {
    return page.id == 0 ? Cost{0, kCostOfLeaving * page.bytes_until_left, 0}
                        : Cost{0, 0, page.bytes};
  }
};

// True if the free ranges outside of [first, last] can take the pages, each
// by best fit as the allocator would.
bool fits_outside(
    const std::vector<Range>& ranges,
    size_t first,
    size_t last,
    const std::vector<Page*>& pages) {
  std::multiset<size_t> gaps;
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (!ranges[i].block && (i < first || i > last)) {
      gaps.insert(ranges[i].size);
    }
  }
  for (const Page* page : pages) {
    const size_t bytes = round_up(page->bytes, kMinBlockSize);
    const auto gap = gaps.lower_bound(bytes);
    if (page->id == 0) {
      continue;
    }
    if (gap == gaps.end()) {
      return false;
    }
    const size_t rest = *gap - bytes;
    gaps.erase(gap);
    if (rest > kSmallSize) {
      gaps.insert(rest);
    }
  }
  return true;
}

struct Span { // of ranges, first and last included
  Cost cost;
  size_t first;
  size_t last;
};

// All minimal runs that can serve the request, cheapest first.
std::vector<Span> spans_of(
    const std::vector<Range>& ranges,
    size_t bytes,
    const Ranking& ranking) {
  std::vector<Span> spans;
  for_each_run(ranges, bytes, ranking, [&](const Run& run, size_t last) {
    spans.push_back({run.has_pages() ? run.cost() : Cost{}, run.begin(), last});
  });
  const size_t count = std::min(spans.size(), kClearings);
  std::partial_sort(
      spans.begin(),
      spans.begin() + static_cast<std::ptrdiff_t>(count),
      spans.end(),
      [](const Span& a, const Span& b) { return a.cost < b.cost; });
  spans.resize(count);
  return spans;
}

} // namespace

Clearing cheapest_clearing(const Layout& layout, const Request& request) {
  const BytesToMove ranking;
  for (const auto& [address, segment] : layout.segments()) {
    if (segment.size < request.bytes ||
        !segment.serves(request.bytes, request.stream)) {
      continue;
    }
    const auto ranges = ranges_of(address, segment);
    for (const Span& span : spans_of(ranges, request.bytes, ranking)) {
      Clearing clearing{address, address, {}};
      for (size_t i = 0; i <= span.last; ++i) {
        clearing.begin += i < span.first ? ranges[i].size : 0;
        clearing.end += ranges[i].size;
        if (i >= span.first && ranges[i].block) {
          clearing.pages.push_back(ranges[i].block->page);
        }
      }
      std::sort(
          clearing.pages.begin(),
          clearing.pages.end(),
          [](const Page* a, const Page* b) { return a->bytes > b->bytes; });
      if (fits_outside(ranges, span.first, span.last, clearing.pages)) {
        return clearing;
      }
    }
  }
  return {};
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

} // namespace at::cuda::lms
