#include <ATen/cuda/detail/LMSCoreRuns.h>
#include <ATen/cuda/detail/LMSCoreSpace.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace at::cuda::lms {
namespace {

constexpr size_t kClearings = 16; // looked at for room outside, cheapest first

// A tight clearing is for requests of at least this part of the memory: pages
// that are evicted for a smaller one are about as small, and soon back.
constexpr size_t kLarge = 128;

class BytesToMove final : public Ranking {
 public:
  explicit BytesToMove(const Request& request) : request_(request) {}

  Cost cost_of(const Page& page) const override {
    return page.draining
        ? Cost{0, kCostOfCopy * bytes_until_drained(page, request_.drained), 0}
        : Cost{0, 0, page.bytes};
  }

  // What is still on its way would have to arrive first.
  bool may_evict(const Page& page) const override {
    return page.draining ? may_wait_for(page, request_)
                         : page.arrives_at <= request_.arrived;
  }

 private:
  const Request& request_;
};

struct Span { // of ranges, first and last included
  Cost cost;
  size_t first;
  size_t last;

  bool has(size_t range) const {
    return range >= first && range <= last;
  }
};

bool is_draining(const Block& block) {
  return block.page && block.page->draining && block.page->evictable;
}

// A range that is free, is draining, or is kept.
struct Hole {
  size_t range; // its number
  size_t size;
  Page* draining; // null: it is free now
  bool is_kept; // for something else, see Request

  bool is_free(uint64_t until) const {
    return !is_kept && (!draining || draining->drained_at <= until);
  }
};

// The ranges of a segment, few of which are holes.
struct Ranges {
  explicit Ranges(const std::vector<Range>& all) : all(all), offsets{0} {
    offsets.reserve(all.size() + 1);
    for (size_t i = 0; i < all.size(); ++i) {
      const Block* block = all[i].block;
      offsets.push_back(offsets.back() + all[i].size);
      if (!block || block == &kKept || is_draining(*block)) {
        const bool is_kept = block == &kKept;
        Page* draining = block && !is_kept ? block->page : nullptr;
        holes.push_back({i, all[i].size, draining, is_kept});
      }
    }
  }

  const std::vector<Range>& all;
  std::vector<uintptr_t> offsets; // where they begin, and the last one's end
  std::vector<Hole> holes;
};

// The sizes of the free ranges outside of a span, while some are being taken.
class Outside {
 public:
  Outside(const Shelf& shelf, const Ranges& ranges, Span inside)
      : gaps_(shelf.gaps), free_(shelf.free) {
    for (const Hole& hole : ranges.holes) {
      const bool is_inside = inside.has(hole.range);
      if (is_inside ? !hole.draining && !hole.is_kept : hole.is_kept) {
        --changes_[hole.size];
        free_ -= hole.size;
      }
    }
  }

  // Bytes, before anything was added or taken.
  size_t free() const {
    return free_;
  }

  // Adds what drains there until so many bytes have drained.
  void add_draining(const Ranges& ranges, Span inside, uint64_t until) {
    size_t gap = 0; // free ranges next to each other become one
    size_t next = 0; // the range behind it
    for (const Hole& hole : ranges.holes) {
      if (inside.has(hole.range) || !hole.is_free(until)) {
        continue;
      }
      if (gap > 0 && hole.range != next) {
        ++changes_[gap];
        gap = 0;
      }
      changes_[hole.size] -= hole.draining ? 0 : 1;
      gap += hole.size;
      next = hole.range + 1;
    }
    if (gap > 0) {
      ++changes_[gap];
    }
  }

  // Takes memory by best fit, as the allocator would. False if there is none.
  bool take(size_t bytes) {
    const auto size = best_fit(bytes);
    if (!size) {
      return false;
    }
    --changes_[*size];
    if (const size_t rest = *size - bytes; rest > kSmallSize) {
      ++changes_[rest];
    }
    return true;
  }

 private:
  std::optional<size_t> best_fit(size_t bytes) const {
    std::optional<size_t> best;
    for (auto gap = gaps_.lower_bound(bytes); gap != gaps_.end(); ++gap) {
      const auto change = changes_.find(gap->first);
      const int64_t more = change == changes_.end() ? 0 : change->second;
      if (static_cast<int64_t>(gap->second) + more > 0) {
        best = gap->first;
        break;
      }
    }
    for (auto change = changes_.lower_bound(bytes);
         change != changes_.end() && (!best || change->first < *best);
         ++change) {
      if (change->second > 0 && gaps_.count(change->first) == 0) {
        return change->first;
      }
    }
    return best;
  }

  const std::map<size_t, size_t>& gaps_;
  std::map<size_t, int64_t> changes_; // to the number of gaps, by size
  size_t free_;
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

Clearing clearing_of(uintptr_t begin, const Ranges& ranges, const Span& span) {
  Clearing clearing;
  clearing.extent = {
      begin + ranges.offsets[span.first],
      begin + ranges.offsets[span.last + 1]};
  for (size_t i = span.first; i <= span.last; ++i) {
    if (ranges.all[i].block) {
      clearing.pages.push_back(ranges.all[i].block->page);
    }
  }
  std::sort(
      clearing.pages.begin(),
      clearing.pages.end(),
      [](const Page* a, const Page* b) { return a->bytes > b->bytes; });
  return clearing;
}

bool fits(const Clearing& clearing, Outside outside) {
  return std::all_of(
      clearing.pages.begin(), clearing.pages.end(), [&](const Page* page) {
        return page->draining ||
            outside.take(round_up(page->bytes, kMinBlockSize));
      });
}

// The memory outside of the span that is draining, what is free first first.
std::vector<Page*> draining_outside(
    const Ranges& ranges,
    const Span& span,
    const Ranking& ranking) {
  std::vector<Page*> draining;
  for (const Hole& hole : ranges.holes) {
    if (hole.draining && !span.has(hole.range) &&
        ranking.may_evict(*hole.draining)) {
      draining.push_back(hole.draining);
    }
  }
  std::sort(draining.begin(), draining.end(), [](const Page* a, const Page* b) {
    return a->drained_at < b->drained_at;
  });
  return draining;
}

// Those of them that have to go for what is inside to fit outside, nothing if
// not even all are enough.
std::optional<std::vector<Page*>> needed_outside(
    const Clearing& clearing,
    const Shelf& shelf,
    const Ranges& ranges,
    const Span& span,
    const Ranking& ranking) {
  const Outside outside(shelf, ranges, span);
  if (fits(clearing, outside)) {
    return std::vector<Page*>{};
  }
  auto draining = draining_outside(ranges, span, ranking);
  const auto fits_with = [&](size_t count) { // of them, at least one
    Outside more = outside;
    more.add_draining(ranges, span, draining[count - 1]->drained_at);
    return fits(clearing, std::move(more));
  };
  if (draining.empty() || !fits_with(draining.size())) {
    return std::nullopt;
  }
  size_t low = 1;
  size_t high = draining.size();
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (fits_with(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  draining.resize(high);
  return draining;
}

// The best of the spans, which come cheapest first.
Clearing cheapest_of(
    const std::vector<Span>& spans,
    uintptr_t begin,
    const Ranges& ranges,
    const Shelf& shelf,
    const Ranking& ranking) {
  Clearing best;
  Cost best_cost;
  for (const Span& span : spans) {
    if (!best.pages.empty() && !(span.cost < best_cost)) {
      break;
    }
    auto clearing = clearing_of(begin, ranges, span);
    const auto needed = needed_outside(clearing, shelf, ranges, span, ranking);
    if (!needed) {
      continue;
    }
    Cost cost = span.cost;
    for (Page* page : *needed) {
      clearing.pages.push_back(page);
      cost.wait = std::max(cost.wait, ranking.cost_of(*page).wait);
    }
    if (best.pages.empty() || cost < best_cost) {
      best = std::move(clearing);
      best_cost = cost;
    }
  }
  return best;
}

// The cheapest of the spans that is free if what is free outside is joined.
Clearing tight_one_of(
    const std::vector<Span>& spans,
    uintptr_t begin,
    const Ranges& ranges,
    const Shelf& shelf,
    size_t bytes) {
  for (const Span& span : spans) {
    auto clearing = clearing_of(begin, ranges, span);
    size_t moving = 0;
    size_t largest = 0;
    for (const Page* page : clearing.pages) {
      moving += page->draining ? 0 : page->bytes;
      largest = std::max(largest, page->bytes);
    }
    if (largest < bytes && moving <= Outside(shelf, ranges, span).free()) {
      clearing.is_tight = true;
      return clearing;
    }
  }
  return {};
}

} // namespace

Clearing cheapest_clearing(
    const Layout& layout,
    const Request& request,
    uintptr_t* hand) {
  const BytesToMove ranking(request);
  const Shelf& shelf = layout.shelf(request.bytes, request.stream);
  if (shelf.free + (request.sent - request.drained) < request.bytes) {
    return {}; // not even all of what is free, or soon will be, is enough
  }
  const bool may_be_tight = request.kept.begin == request.kept.end &&
      request.bytes >= layout.reserved() / kLarge;
  Clearing tight;
  Sweep sweep(shelf, request, hand);
  while (sweep.next()) {
    const auto spans = spans_of(sweep.ranges(), request.bytes, ranking);
    const Ranges ranges(sweep.ranges());
    auto best = cheapest_of(spans, sweep.begin(), ranges, shelf, ranking);
    if (!best.pages.empty()) {
      return best;
    }
    if (may_be_tight && tight.pages.empty()) {
      tight = tight_one_of(spans, sweep.begin(), ranges, shelf, request.bytes);
    }
    if (sweep.has_looked_enough()) {
      break;
    }
  }
  return tight;
}

} // namespace at::cuda::lms
