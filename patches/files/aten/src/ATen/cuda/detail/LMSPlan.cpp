#include <ATen/cuda/detail/LMSPlan.h>

#include <ATen/cuda/detail/LMSFetchOrder.h>
#include <ATen/cuda/detail/LMSRangeMaximum.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <queue>
#include <utility>

namespace at::cuda::lms {
namespace {

constexpr int kCycles = 3; // simulated; the second one is the steady state
// A page that dies is not fetched again: it may be away for so much less time.
constexpr uint64_t kDeath = 8;
// The part of the capacity that is kept for pages on their way, at most:
// 1 / kMostAhead.
constexpr size_t kMostAhead = 8;
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

Plan::Plan(Cycle cycle, size_t capacity)
    : cycle_(std::move(cycle)), fetches_from_(cycle_.length() + 1) {
  for (const Interval& it : cycle_.intervals) {
    is_complete_ = is_complete_ && !it.is_endless;
  }
  least_ = capacity / kSmallest;
  const std::vector<int64_t> tiny = managed(least_);
  if (*std::max_element(tiny.begin(), tiny.end()) >
      static_cast<int64_t>(capacity / kSmallOnes)) {
    least_ = 0;
  }
  const size_t kept = capacity - std::min(typical(), capacity / kMostAhead);
  choose_victims(kept);
  choose_more_victims(kept);
  if (has_traffic_) {
    choose_fetches(capacity, kept);
  }
  // What only planning needs.
  cycle_.before = {};
  cycle_.unmanaged = {};
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

// See Note [Planning an iteration], 1.
void Plan::choose_victims(size_t capacity) {
  const uint32_t n = length();
  struct Idle {
    uint64_t end; // next use or death, or never
    uint64_t begin;
    uint32_t number;
    bool operator<(const Idle& other) const {
      return end < other.end || (end == other.end && number < other.number);
    }
  };
  constexpr uint64_t kNever = Page::kNever;
  std::priority_queue<Idle> idle; // farthest next use first
  // When the interval's present turn began, and whether its page is out.
  std::vector<uint64_t> turn(count(), kNever);
  std::vector<char> is_out(count(), 0);
  std::vector<std::vector<uint32_t>> deaths(n);
  for (uint32_t i = 0; i < count(); ++i) {
    const Interval& it = cycle_.intervals[i];
    if (it.length == 0 && !it.is_endless) {
      deaths[(it.begin + it.death) % n].push_back(i);
    }
  }
  size_t used = 0;
  for (uint64_t now = 0; now < uint64_t{kCycles} * n; ++now) {
    const auto position = static_cast<uint32_t>(now % n);
    const uint32_t first = cycle_.starts[position];
    const uint32_t last = first + slots(position);
    for (uint32_t i = first; i < last; ++i) {
      const uint32_t before = cycle_.before[i];
      const bool is_here = before != Cycle::kNone && turn[before] != kNever &&
          turn[before] + cycle_.intervals[before].length == now &&
          !is_out[before];
      used += is_here ? 0 : cycle_.intervals[i].bytes;
      if (before != Cycle::kNone) {
        turn[before] = kNever; // over
      }
    }
    while (used + cycle_.unmanaged[position] > capacity && !idle.empty()) {
      const Idle farthest = idle.top();
      idle.pop();
      if (turn[farthest.number] != farthest.begin) {
        continue; // over
      }
      is_out[farthest.number] = 1;
      used -= cycle_.intervals[farthest.number].bytes;
      if (farthest.begin / n == 1) {
        cycle_.intervals[farthest.number].is_evicted = true;
        has_traffic_ = true;
      }
      if (farthest.end == kNever) {
        turn[farthest.number] = kNever;
      }
    }
    for (uint32_t i = first; i < last; ++i) {
      if (turn[i] != kNever && !is_out[i]) {
        used -=
            cycle_.intervals[i].bytes; // nobody saw the end of its last turn
      }
      turn[i] = now;
      is_out[i] = 0;
      const Interval& it = cycle_.intervals[i];
      // Of what dies, too, evicting wins the time until then only. What is
      // used or dies with the next operator cannot be evicted in between.
      const uint64_t length = it.length > 0 ? it.length : it.death;
      if (it.bytes >= least_ && (it.is_endless || length > 1)) {
        const uint64_t weight = it.length > 0 ? 1 : kDeath;
        idle.push({it.is_endless ? kNever : now + weight * length, now, i});
      }
    }
    for (const uint32_t i : deaths[position]) {
      if (turn[i] != kNever && turn[i] + cycle_.intervals[i].death == now) {
        used -= is_out[i] ? 0 : cycle_.intervals[i].bytes;
        turn[i] = kNever;
      }
    }
  }
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
  // The next use and the interval's number, farthest first.
  std::priority_queue<std::pair<uint64_t, uint32_t>> idle;
  const auto may_evict = [this](const Interval& it) {
    return !it.is_evicted && it.length > 1 && it.bytes >= least_;
  };
  for (uint32_t i = 0; i < count(); ++i) { // of the cycle before
    const uint64_t end =
        uint64_t{cycle_.intervals[i].begin} + cycle_.intervals[i].length;
    if (may_evict(cycle_.intervals[i]) && end > n) {
      idle.emplace(end - n, i);
    }
  }
  for (uint32_t now = 0; now < n; ++now) {
    while (resident.maximum(now, 1) > static_cast<int64_t>(capacity) &&
           !idle.empty() && idle.top().first > now) {
      Interval& it = cycle_.intervals[idle.top().second];
      idle.pop();
      if (it.is_evicted) {
        continue;
      }
      it.is_evicted = has_traffic_ = true;
      resident.add(
          (it.begin + 1) % n, it.length - 1, -static_cast<int64_t>(it.bytes));
    }
    for (uint32_t slot = 0; slot < slots(now); ++slot) {
      const Interval& it = interval(now, slot);
      if (may_evict(it)) {
        idle.emplace(uint64_t{now} + it.length, number(now, slot));
      }
    }
  }
}

// See Note [Planning an iteration], 3.
void Plan::choose_fetches(size_t capacity, size_t kept) {
  const std::vector<int64_t> resident = residency();
  // Those that come back in the cycle after the one that they were evicted in
  // compete with those of that cycle, so they have to be known from the start.
  std::vector<uint32_t> later;
  for (int i = 1; i < kCycles; ++i) {
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
