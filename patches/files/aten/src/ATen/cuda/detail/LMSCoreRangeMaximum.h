#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace at::cuda::lms {

// Numbers on a circle: adds to a range, and gives the maximum of a range, in
// logarithmic time (a segment tree whose nodes keep what was added to all of
// their range).
class RangeMaximum {
 public:
  explicit RangeMaximum(const std::vector<int64_t>& values)
      : count_(values.size()), nodes_(4 * std::max<size_t>(count_, 1)) {
    build(1, 0, count_, values);
  }

  // Of `length` positions from `begin` on, which may go around.
  int64_t maximum(size_t begin, size_t length) const {
    int64_t result = kLowest;
    around(begin, length, [&](size_t from, size_t to) {
      result = std::max(result, maximum(1, 0, count_, from, to));
    });
    return result;
  }

  void add(size_t begin, size_t length, int64_t amount) {
    around(begin, length, [&](size_t from, size_t to) {
      add(1, 0, count_, from, to, amount);
    });
  }

 private:
  static constexpr int64_t kLowest = std::numeric_limits<int64_t>::lowest();

  struct Node {
    int64_t maximum = 0; // of its range, `added` included
    int64_t added = 0; // to all of its range
  };

  template <class Visit>
  void around(size_t begin, size_t length, Visit visit) const {
    length = std::min(length, count_);
    begin %= count_;
    const size_t end = std::min(begin + length, count_);
    if (begin < end) {
      visit(begin, end);
    }
    if (const size_t rest = length - (end - begin); rest > 0) {
      visit(0, rest);
    }
  }

  void build(
      size_t node,
      size_t low,
      size_t high,
      const std::vector<int64_t>& values) {
    if (high - low <= 1) {
      nodes_[node].maximum = values.empty() ? 0 : values[low];
      return;
    }
    const size_t middle = (low + high) / 2;
    build(2 * node, low, middle, values);
    build(2 * node + 1, middle, high, values);
    update(node);
  }

  void update(size_t node) {
    nodes_[node].maximum = nodes_[node].added +
        std::max(nodes_[2 * node].maximum, nodes_[2 * node + 1].maximum);
  }

  int64_t maximum(size_t node, size_t low, size_t high, size_t from, size_t to)
      const {
    if (from >= high || to <= low) {
      return kLowest;
    }
    if (from <= low && high <= to) {
      return nodes_[node].maximum;
    }
    const size_t middle = (low + high) / 2;
    return nodes_[node].added +
        std::max(
               maximum(2 * node, low, middle, from, to),
               maximum(2 * node + 1, middle, high, from, to));
  }

  void add(
      size_t node,
      size_t low,
      size_t high,
      size_t from,
      size_t to,
      int64_t amount) {
    if (from >= high || to <= low) {
      return;
    }
    if (from <= low && high <= to) {
      nodes_[node].maximum += amount;
      nodes_[node].added += amount;
      return;
    }
    const size_t middle = (low + high) / 2;
    add(2 * node, low, middle, from, to, amount);
    add(2 * node + 1, middle, high, from, to, amount);
    update(node);
  }

  size_t count_;
  std::vector<Node> nodes_;
};

} // namespace at::cuda::lms
