#include <ATen/cuda/detail/LMSCorePlan.h>

#include <ATen/cuda/detail/LMSCoreFetchOrder.h>
#include <ATen/cuda/detail/LMSCoreLink.h>
#include <ATen/cuda/detail/LMSCoreRangeMaximum.h>
#include <ATen/cuda/detail/LMSCoreSaving.h>
#include <ATen/cuda/detail/LMSCoreVictims.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>

namespace at::cuda::lms {
namespace {

// The part of the capacity that is kept for pages on their way, at most:
// 1 / kMostAhead.
constexpr size_t kMostAhead = 8;
// And for bytes that are made for the moment, to make others from: 1 /
// kMostMade.
constexpr size_t kMostMade = 64;
// To evict a page that takes less than 1 / kSmallest of the capacity costs more
// than it brings, unless such pages take more than 1 / kSmallOnes of it.
constexpr size_t kSmallest = size_t{1} << 16;
constexpr size_t kSmallOnes = 64;

// Adds to the positions [begin, end) of an endless repetition of the cycle.
void add_around(
    std::vector<int64_t>& steps, // differences between positions
    uint64_t begin,
    uint64_t end,
    int64_t amount) {
  const uint64_t n = steps.size() - 1;
  const auto rounds = static_cast<int64_t>((end - begin) / n);
  steps[0] += rounds * amount;
  const uint64_t first = begin % n;
  const uint64_t last = first + (end - begin) % n;
  steps[first] += amount;
  if (last <= n) {
    steps[last] -= amount;
  } else {
    steps[n] -= amount;
    steps[0] += amount;
    steps[last - n] -= amount;
  }
}

} // namespace

Plan::Plan(Cycle cycle, size_t capacity, double copy_ns, bool makes_again)
    : cycle_(std::move(cycle)), fetches_from_(cycle_.length() + 1) {
  for (Interval& it : cycle_.intervals) {
    is_complete_ = is_complete_ && !it.is_endless;
    it.gain = makes_again ? it.gain : 0;
    gains_ += it.gain > 0 ? 1 : 0;
  }
  least_ = capacity / kSmallest;
  const std::vector<int64_t> tiny = managed(least_);
  if (*std::max_element(tiny.begin(), tiny.end()) >
      static_cast<int64_t>(capacity / kSmallOnes)) {
    least_ = 0;
  }
  const size_t ahead = std::min(typical(), capacity / kMostAhead);
  const size_t made =
      makes_again ? std::min(2 * typical(), capacity / kMostMade) : 0;
  const size_t kept = capacity - ahead - made;
  Saving saving(cycle_, makes_again ? copy_ns : 0);
  has_traffic_ = Victims(cycle_, kept, least_, saving.free_deaths()).run();
  choose_more_victims(kept);
  if (has_traffic_) {
    Link link(cycle_, residency(), kept, copy_ns);
    link.run();
    copying_us_ = link.copying_us();
    saves_ = saving.run();
    choose_fetches(capacity, kept);
  }
  // What only planning needs.
  cycle_.before = {};
  cycle_.unmanaged = {};
  cycle_.ns = {};
}

// Bytes of a page such that half of all bytes that come back are in pages that
// are no larger.
size_t Plan::typical() const {
  std::vector<size_t> sizes;
  size_t sum = 0;
  for (const Interval& it : cycle_.intervals) {
    if (it.length > 1) {
      sizes.push_back(it.bytes);
      sum += it.bytes;
    }
  }
  std::sort(sizes.begin(), sizes.end());
  size_t seen = 0;
  for (const size_t bytes : sizes) {
    seen += bytes;
    if (2 * seen >= sum) {
      return bytes;
    }
  }
  return 0;
}

// Bytes that pages of fewer than `below` bytes take by position, if what is
// evicted comes back with its next use.
std::vector<int64_t> Plan::managed(size_t below) const {
  const uint32_t n = length();
  std::vector<int64_t> steps(n + 1, 0);
  for (const Interval& it : cycle_.intervals) {
    if (it.bytes >= below) {
      continue;
    }
    const uint64_t begin = it.begin;
    const uint64_t end = it.is_evicted ? begin + 1
        : it.length > 0                ? begin + it.length
        : it.is_endless                ? begin + n
                                       : begin + it.death + 1;
    add_around(steps, begin, end, static_cast<int64_t>(it.bytes));
  }
  steps.pop_back();
  std::partial_sum(steps.begin(), steps.end(), steps.begin());
  return steps;
}

std::vector<int64_t> Plan::residency() const {
  std::vector<int64_t> resident = managed(std::numeric_limits<size_t>::max());
  for (uint32_t i = 0; i < length(); ++i) {
    resident[i] += static_cast<int64_t>(cycle_.unmanaged[i]);
  }
  return resident;
}

// See Note [Planning an iteration], 1.
void Plan::choose_more_victims(size_t capacity) {
  const uint32_t n = length();
  RangeMaximum resident(residency());
  // Turn, next use and the interval's number, farthest first.
  std::priority_queue<std::tuple<Hint::Turn, uint64_t, uint32_t>> idle;
  const auto may_evict = [this](const Interval& it) {
    return !it.is_evicted && it.length > 1 && it.bytes >= least_;
  };
  for (uint32_t i = 0; i < count(); ++i) { // of the cycle before
    const uint64_t end =
        uint64_t{cycle_.intervals[i].begin} + cycle_.intervals[i].length;
    if (may_evict(cycle_.intervals[i]) && end > n) {
      idle.emplace(cycle_.intervals[i].turn, end - n, i);
    }
  }
  for (uint32_t now = 0; now < n; ++now) {
    while (resident.maximum(now, 1) > static_cast<int64_t>(capacity) &&
           !idle.empty()) {
      const auto [turn, end, number] = idle.top();
      idle.pop();
      Interval& it = cycle_.intervals[number];
      if (it.is_evicted || end <= now) {
        continue;
      }
      it.is_evicted = has_traffic_ = true;
      it.away = (now + n - it.begin) % n;
      resident.add(
          (it.begin + 1) % n, it.length - 1, -static_cast<int64_t>(it.bytes));
    }
    for (uint32_t slot = 0; slot < slots(now); ++slot) {
      const Interval& it = interval(now, slot);
      if (may_evict(it)) {
        idle.emplace(it.turn, uint64_t{now} + it.length, number(now, slot));
      }
    }
  }
}

// See Note [Planning an iteration], 4.
void Plan::choose_fetches(size_t capacity, size_t kept) {
  const std::vector<int64_t> resident = residency();
  // Those that come back in the cycle after the one that they were evicted in
  // compete with those of that cycle, so they have to be known from the start.
  std::vector<uint32_t> later;
  for (int i = 1; i < Victims::kCycles; ++i) {
    FetchOrder order(*this, resident, capacity, kept);
    later = order.run_cycle(later);
  }
  FetchOrder order(*this, resident, capacity, kept);
  order.run_cycle(later);
  const auto fetches = order.run_rest(later);
  is_due_.assign(count(), 0);
  for (uint32_t position = 0; position < length(); ++position) {
    for (const uint32_t number : fetches[position]) {
      Interval& it = at(number);
      if (it.begin == position) {
        it.is_evicted = false; // there is room for it after all
        continue;
      }
      fetches_.push_back(number);
      is_due_[number] = it.begin <= position ? 1 : 0;
    }
    fetches_from_[position + 1] = static_cast<uint32_t>(fetches_.size());
  }
}

} // namespace at::cuda::lms
