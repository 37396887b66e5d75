#include <ATen/cuda/detail/LMSCoreRuns.h>

#include <iterator>

namespace at::cuda::lms {

const Block kKept;

bool is_movable(const Range& range, const Ranking& ranking) {
  if (!range.block) {
    return true;
  }
  const Page* page = range.block->page;
  return page && page->evictable && ranking.may_evict(*page);
}

Sweep::Sweep(const Shelf& shelf, const Request& request, uintptr_t* hand)
    : shelf_(shelf),
      bytes_(request.bytes),
      kept_(request.kept),
      hand_(shelf.blocks > kFew ? hand : nullptr),
      at_(hand_ ? *hand_ : 0),
      segment_(shelf.segments.upper_bound(at_)) {
  if (segment_ != shelf.segments.begin()) {
    --segment_;
  }
}

bool Sweep::next() {
  while (seen_ < shelf_.blocks) {
    if (segment_ == shelf_.segments.end()) {
      segment_ = shelf_.segments.begin();
      at_ = 0;
    }
    const auto& [address, segment] = *segment_;
    take(address, *segment);
    if (segment->size >= bytes_ && !ranges_.empty()) {
      return true;
    }
  }
  return false;
}

// The ranges from at_ on: the rest of the segment, or kLooks blocks of it and
// room for the request.
void Sweep::take(uintptr_t address, const Segment& segment) {
  const Blocks& blocks = segment.blocks;
  auto block = blocks.lower_bound(at_);
  uintptr_t at = address;
  if (block != blocks.begin()) {
    const auto& [left, before] = *std::prev(block);
    at = left + before.size;
  }
  begin_ = at;
  ranges_.clear();
  const size_t limit = hand_ ? kLooks : blocks.size();
  size_t count = 0;
  while (block != blocks.end() &&
         (count < limit || at - begin_ < kRoomInPiece * bytes_)) {
    if (block->first > at) {
      add_gap(at, block->first);
    }
    ranges_.push_back({block->second.size, &block->second});
    at = block->first + block->second.size;
    ++block;
    ++count;
  }
  seen_ += count;
  if (block != blocks.end()) {
    at_ = block->first;
  } else {
    if (const uintptr_t end = address + segment.size; end > at) {
      add_gap(at, end);
    }
    ++segment_;
    at_ = segment_ == shelf_.segments.end() ? 0 : segment_->first;
  }
  if (hand_) {
    *hand_ = at_;
  }
}

void Sweep::add_gap(uintptr_t begin, uintptr_t end) {
  ranges_.push_back({end - begin, kept_.has(begin) ? &kKept : nullptr});
}

} // namespace at::cuda::lms
