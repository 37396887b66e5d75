#pragma once

#include <ATen/cuda/detail/LMSCoreSpace.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

// What the searches for room are made of: parts of the memory to look at, and
// runs of neighbours in them.

namespace at::cuda::lms {

// Stands for memory that is free and has to stay so, see Request::kept.
extern const Block kKept;

// True for a free range, and for a page that may go.
bool is_movable(const Range& range, const Ranking& ranking);

// A run of movable ranges that grows at its end and shrinks at its start, and
// knows its cost at any time.
class Run {
 public:
  Run(const std::vector<Range>& ranges, const Ranking& ranking)
      : ranges_(ranges), ranking_(ranking) {}

  void restart(size_t at) {
    begin_ = at;
    size_ = traffic_ = kept_ = 0;
    pages_ = 0;
    wait_.clear();
    last_use_.clear();
  }

  void extend(size_t at) {
    size_ += ranges_[at].size;
    if (const Page* page = page_at(at)) {
      const Cost cost = ranking_.cost_of(*page);
      traffic_ += cost.traffic;
      kept_ += cost.kept;
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
        const Cost cost = ranking_.cost_of(*page);
        traffic_ -= cost.traffic;
        kept_ -= cost.kept;
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
    return {last_use_.front().second, wait_.front().second, traffic_, kept_};
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
  size_t kept_ = 0; // bytes
  size_t pages_ = 0;
  Maxima wait_;
  Maxima last_use_;
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

// A search through a shelf, piece by piece: whole segments, or parts of large
// ones. See Note [Bounded search].
class Sweep {
 public:
  // Begins at the hand and leaves it where it ends; null: at the first segment,
  // and with whole segments only.
  Sweep(const Shelf& shelf, const Request& request, uintptr_t* hand);

  // Goes to the next piece. False if each range has been seen.
  bool next();
  // True if it has looked at as much as one search should.
  bool has_looked_enough() const {
    return hand_ && seen_ >= kLooks;
  }

  uintptr_t begin() const {
    return begin_;
  }
  const std::vector<Range>& ranges() const {
    return ranges_;
  }

 private:
  void take(uintptr_t address, const Segment& segment);
  void add_gap(uintptr_t begin, uintptr_t end);

  static constexpr size_t kFew = 2048; // blocks that are searched as a whole
  static constexpr size_t kLooks = 16; // of more, so many by one search
  static constexpr size_t kRoomInPiece = 2; // times the request, at least

  const Shelf& shelf_;
  const size_t bytes_; // of the request
  const Extent kept_;
  uintptr_t* hand_;
  uintptr_t at_ = 0; // where the next piece begins
  std::map<uintptr_t, const Segment*>::const_iterator segment_; // of at_
  size_t seen_ = 0; // blocks
  uintptr_t begin_ = 0; // of the piece
  std::vector<Range> ranges_; // of the piece
};

} // namespace at::cuda::lms
