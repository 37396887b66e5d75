#include <ATen/cuda/detail/LMSCoreSaving.h>

#include <ATen/cuda/detail/LMSCoreLink.h>

#include <algorithm>
#include <queue>

namespace at::cuda::lms {
namespace {

// Nothing is saved while copies of so much time are under way.
constexpr uint64_t kMostUnderWay = 4'000'000; // nanoseconds

} // namespace

uint64_t Saving::ns(const Interval& it) const {
  return copy_time(it, copy_ns_);
}

std::vector<char> Saving::free_deaths() const {
  std::vector<char> found(cycle_.count(), 0);
  FreeTime out(cycle_.ns);
  const uint32_t n = cycle_.length();
  for (uint32_t i = 0; i < cycle_.count(); ++i) {
    const Interval& it = cycle_.intervals[i];
    if (it.length > 0 || it.is_endless || it.is_after_write) {
      continue;
    }
    const uint32_t begin = cycle_.intervals[cycle_.first_of_same(i)].begin;
    const uint32_t before = (it.begin + n - begin) % n;
    // Where it is dead soon there is little to be won.
    if (ns(it) == 0 || out.sum(it.begin + 1, it.death) < ns(it) ||
        out.sum(begin + 1, before) < kCopySlack * ns(it)) {
      continue;
    }
    out.take_first(begin + 1, before, ns(it));
    found[i] = 1;
  }
  return found;
}

// Walks through the cycle twice: the second time, what the first has begun goes
// on.
std::vector<std::vector<uint32_t>> Saving::run() {
  const uint32_t n = cycle_.length();
  std::vector<std::vector<uint32_t>> saves(n);
  std::vector<std::vector<Wanted>> begins(n); // `until`: operators from there
  std::vector<uint64_t> evictions(n, 0); // nanoseconds
  for (uint32_t i = 0; i < cycle_.count(); ++i) {
    const Interval& it = cycle_.intervals[i];
    if (!it.is_evicted || !it.is_copied) {
      continue;
    }
    const Interval& first = cycle_.intervals[cycle_.first_of_same(i)];
    if (&first == &it) {
      evictions[it.begin] += ns(it);
    } else if (first.is_after_write) { // else the host has the bytes
      begins[first.begin].push_back({(it.begin + n - first.begin) % n, i});
    }
  }
  std::priority_queue<Wanted> wanted;
  uint64_t under_way = 0; // nanoseconds
  for (uint64_t now = 0; now < uint64_t{2} * n; ++now) {
    const auto position = static_cast<uint32_t>(now % n);
    under_way += evictions[position];
    for (const Wanted& one : begins[position]) {
      wanted.push({now + one.until, one.number});
    }
    while (!wanted.empty() && wanted.top().until <= now) {
      under_way += ns(cycle_.intervals[wanted.top().number]); // no time
      wanted.pop();
    }
    while (!wanted.empty() && under_way < kMostUnderWay) {
      const uint32_t number = wanted.top().number;
      wanted.pop();
      under_way += ns(cycle_.intervals[number]);
      if (now >= n) {
        saves[position].push_back(active_at(number, position));
        cycle_.intervals[saves[position].back()].is_saved = true;
      }
    }
    under_way -= std::min<uint64_t>(under_way, cycle_.ns[position]);
  }
  return saves;
}

// Of the intervals before that one, in which the page has the same bytes, the
// one that has begun by the position.
uint32_t Saving::active_at(uint32_t number, uint32_t position) const {
  const uint32_t n = cycle_.length();
  const uint32_t end = cycle_.intervals[number].begin;
  const uint32_t left = (end + n - position) % n;
  do {
    number = cycle_.before[number];
  } while ((end + n - cycle_.intervals[number].begin) % n < left);
  return number;
}

} // namespace at::cuda::lms
