#include <ATen/cuda/detail/LMSCoreLink.h>

#include <algorithm>
#include <numeric>
#include <tuple>

namespace at::cuda::lms {

// --- free time ---

FreeTime::FreeTime(const std::vector<uint32_t>& ns)
    : free_(ns.begin(), ns.end()), sums_(ns.size() + 1) {
  for (size_t i = 1; i < sums_.size(); ++i) {
    sums_[i] += free_[i - 1];
    if (const size_t up = i + (i & -i); up < sums_.size()) {
      sums_[up] += sums_[i];
    }
  }
}

uint64_t FreeTime::sum_before(uint64_t position) const {
  uint64_t sum = 0;
  for (; position > 0; position -= position & -position) {
    sum += sums_[position];
  }
  return sum;
}

uint64_t FreeTime::sum(uint64_t begin, uint64_t length) const {
  const uint64_t n = free_.size();
  length = std::min(length, n);
  begin %= n;
  const uint64_t end = begin + length;
  return end <= n ? sum_before(end) - sum_before(begin)
                  : sum_before(n) - sum_before(begin) + sum_before(end - n);
}

void FreeTime::take(uint64_t position, uint64_t ns) {
  free_[position] -= ns;
  for (uint64_t i = position + 1; i < sums_.size(); i += i & -i) {
    sums_[i] -= ns;
  }
}

uint64_t FreeTime::take_first(uint64_t begin, uint64_t length, uint64_t ns) {
  const uint64_t n = free_.size();
  length = std::min(length, n);
  for (uint64_t i = 0; i < length && ns > 0; ++i) {
    const uint64_t position = (begin + i) % n;
    const uint64_t taken = std::min(ns, free_[position]);
    if (taken > 0) {
      take(position, taken);
      ns -= taken;
    }
  }
  return ns;
}

uint64_t FreeTime::last(uint64_t begin, uint64_t length, uint64_t ns) const {
  const uint64_t n = free_.size();
  length = std::min(length, n);
  for (uint64_t i = 1; i <= length; ++i) {
    const uint64_t free = free_[(begin + length - i) % n];
    if (free >= ns) {
      return i;
    }
    ns -= free;
  }
  return length;
}

uint64_t FreeTime::take_last(uint64_t begin, uint64_t length, uint64_t ns) {
  const uint64_t n = free_.size();
  length = std::min(length, n);
  for (uint64_t i = 1; i <= length && ns > 0; ++i) {
    const uint64_t position = (begin + length - i) % n;
    const uint64_t taken = std::min(ns, free_[position]);
    if (taken > 0) {
      take(position, taken);
      ns -= taken;
    }
  }
  return ns;
}

// --- the choice ---

Link::Link(
    Cycle& cycle,
    const std::vector<int64_t>& resident,
    size_t capacity,
    double copy_ns)
    : cycle_(cycle),
      resident_(resident),
      capacity_(static_cast<int64_t>(capacity)),
      copy_ns_(copy_ns),
      out_(cycle.ns),
      in_(cycle.ns) {}

void Link::run() {
  std::vector<uint32_t> evicted;
  for (uint32_t i = 0; i < cycle_.count(); ++i) {
    Interval& it = cycle_.intervals[i];
    it.is_copied = it.is_evicted && it.gain == 0;
    if (it.is_copied) {
      copy(it);
    } else if (it.is_evicted && it.gain < kMostCopied) {
      evicted.push_back(i);
    }
  }
  // The dearest first, and of those what is away for longest.
  std::sort(evicted.begin(), evicted.end(), [&](uint32_t one, uint32_t other) {
    const auto key = [&](uint32_t number) {
      const Interval& it = cycle_.intervals[number];
      return std::tuple(it.gain, ~it.length, number);
    };
    return key(one) < key(other);
  });
  for (const uint32_t number : evicted) {
    Interval& it = cycle_.intervals[number];
    it.is_copied = has_time(it);
    if (it.is_copied) {
      copy(it);
    }
  }
}

// From the write of its bytes on: see Note [Writing back early].
Link::Window Link::out(const Interval& it) const {
  const auto number = static_cast<uint32_t>(&it - cycle_.intervals.data());
  const Interval& first = cycle_.intervals[cycle_.first_of_same(number)];
  const uint32_t n = cycle_.length();
  return {
      uint64_t{first.begin} + 1, (it.begin + n - first.begin) % n + it.away};
}

Link::Window Link::in(const Interval& it) {
  const uint64_t end = uint64_t{it.begin} + it.length;
  const uint64_t begin = uint64_t{it.begin} + 1 + it.away;
  return {begin, end - std::min(end, begin)};
}

uint64_t Link::ns(const Interval& it) const {
  return copy_time(it, copy_ns_);
}

bool Link::has_time(const Interval& it) const {
  const Window leaves = out(it);
  const Window comes = in(it);
  if (out_.sum(leaves.begin, leaves.length) < kCopySlack * ns(it) ||
      in_.sum(comes.begin, comes.length) < kCopySlack * ns(it)) {
    return false;
  }
  const uint64_t count = in_.last(comes.begin, comes.length, ns(it));
  return resident_.maximum(comes.begin + comes.length - count, count) +
      static_cast<int64_t>(it.bytes) <=
      capacity_;
}

double Link::copying_us() const {
  const uint64_t operators =
      std::accumulate(cycle_.ns.begin(), cycle_.ns.end(), uint64_t{0});
  return static_cast<double>(operators + std::max(late_out_, late_in_)) / 1000;
}

void Link::copy(const Interval& it) {
  const Window leaves = out(it);
  late_out_ += out_.take_first(leaves.begin, leaves.length, ns(it));
  if (it.length == 0) {
    return; // it does not come back
  }
  const Window comes = in(it);
  const uint64_t count = in_.last(comes.begin, comes.length, ns(it));
  late_in_ += in_.take_last(comes.begin, comes.length, ns(it));
  resident_.add(
      comes.begin + comes.length - count,
      count,
      static_cast<int64_t>(it.bytes));
}

} // namespace at::cuda::lms
