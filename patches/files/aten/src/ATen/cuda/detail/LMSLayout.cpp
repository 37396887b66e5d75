#include <ATen/cuda/detail/LMSLayout.h>

#include <initializer_list>
#include <iterator>

namespace at::cuda::lms {

namespace {

// Sizes of 0 stand for no gap.
void replace(
    std::multiset<size_t>& gaps,
    std::initializer_list<size_t> old_sizes,
    std::initializer_list<size_t> new_sizes) {
  for (const size_t size : old_sizes) {
    if (const auto gap = gaps.find(size); gap != gaps.end()) {
      gaps.erase(gap);
    }
  }
  for (const size_t size : new_sizes) {
    if (size > 0) {
      gaps.insert(size);
    }
  }
}

} // namespace

void Layout::clear() {
  segments_.clear();
  reserved_ = 0;
  allocated_ = 0;
}

bool Segment::serves(size_t bytes, uintptr_t on_stream) const {
  if (is_private || stream != on_stream) {
    return false;
  }
  if (blocks.empty()) {
    return true;
  }
  const bool is_small = blocks.begin()->second.size <= kSmallSize;
  return is_small == (bytes <= kSmallSize);
}

Layout::Segments::iterator Layout::segment_of(uintptr_t address) {
  auto it = segments_.upper_bound(address);
  if (it == segments_.begin()) {
    return segments_.end();
  }
  --it;
  return address < it->first + it->second.size ? it : segments_.end();
}

void Layout::add_segment(uintptr_t address, Segment segment) {
  reserved_ += segment.size;
  auto [it, inserted] = segments_.emplace(address, std::move(segment));
  if (!inserted) {
    return;
  }
  auto merge = [this](Segments::iterator left, Segments::iterator right) {
    if (!left->second.is_expandable || !right->second.is_expandable ||
        left->first + left->second.size != right->first ||
        left->second.stream != right->second.stream ||
        left->second.is_private != right->second.is_private) {
      return false;
    }
    left->second.size += right->second.size;
    left->second.blocks.merge(right->second.blocks);
    segments_.erase(right);
    find_gaps(left);
    return true;
  };
  find_gaps(it);
  if (it != segments_.begin()) {
    auto left = std::prev(it);
    if (merge(left, it)) {
      it = left;
    }
  }
  if (auto right = std::next(it); right != segments_.end()) {
    merge(it, right);
  }
}

void Layout::remove_segment(uintptr_t address, size_t size) {
  auto it = segment_of(address);
  if (it == segments_.end()) {
    return;
  }
  reserved_ -= size;
  const uintptr_t begin = it->first;
  Segment& left = it->second;
  const uintptr_t end = begin + left.size;
  const uintptr_t hole_end = address + size;
  if (hole_end < end) {
    Segment right{
        end - hole_end,
        left.stream,
        left.is_private,
        left.is_expandable,
        {},
        {}};
    auto first = left.blocks.lower_bound(hole_end);
    while (first != left.blocks.end()) {
      right.blocks.insert(left.blocks.extract(first++));
    }
    find_gaps(segments_.emplace(hole_end, std::move(right)).first);
  }
  if (address > begin) {
    left.size = address - begin;
    find_gaps(it);
  } else {
    segments_.erase(it);
  }
}

void Layout::add_block(uintptr_t address, size_t requested) {
  auto it = segment_of(address);
  if (it == segments_.end()) {
    return;
  }
  Segment& segment = it->second;
  const auto [begin, end] = gap_around(it, address);
  const size_t range = end - address;
  size_t size = round_up(requested, kMinBlockSize);
  // A rest that is too small to be worth splitting off stays with the block.
  const bool splits_finely = size <= kSmallSize || segment.is_expandable;
  const size_t smallest_rest = splits_finely ? kMinBlockSize : kSmallSize + 1;
  if (size > range || range - size < smallest_rest) {
    size = range;
  }
  segment.blocks[address] = Block{size, nullptr};
  allocated_ += size;
  replace(segment.gaps, {end - begin}, {address - begin, range - size});
}

void Layout::remove_block(uintptr_t address) {
  auto it = segment_of(address);
  if (it == segments_.end()) {
    return;
  }
  Segment& segment = it->second;
  const auto block = segment.blocks.find(address);
  if (block == segment.blocks.end()) {
    return;
  }
  const size_t size = block->second.size;
  segment.blocks.erase(block);
  allocated_ -= size;
  const auto [begin, end] = gap_around(it, address);
  replace(segment.gaps, {address - begin, end - address - size}, {end - begin});
}

std::pair<uintptr_t, uintptr_t> Layout::gap_around(
    Segments::iterator segment,
    uintptr_t address) {
  const Blocks& blocks = segment->second.blocks;
  const auto next = blocks.upper_bound(address);
  uintptr_t begin = segment->first;
  if (next != blocks.begin()) {
    const auto& [start, block] = *std::prev(next);
    begin = start + block.size;
  }
  return {
      begin,
      next == blocks.end() ? segment->first + segment->second.size
                           : next->first};
}

void Layout::find_gaps(Segments::iterator it) {
  it->second.gaps.clear();
  for (const Range& range : ranges_of(it->first, it->second)) {
    if (!range.block) {
      it->second.gaps.insert(range.size);
    }
  }
}

std::pair<Segment*, Block*> Layout::find(uintptr_t address) {
  auto it = segment_of(address);
  if (it == segments_.end()) {
    return {nullptr, nullptr};
  }
  auto block = it->second.blocks.find(address);
  if (block == it->second.blocks.end()) {
    return {nullptr, nullptr};
  }
  return {&it->second, &block->second};
}

size_t Layout::empty() const {
  size_t bytes = 0;
  for (const auto& [address, segment] : segments_) {
    bytes += segment.blocks.empty() && !segment.is_private ? segment.size : 0;
  }
  return bytes;
}

bool Layout::has_gap(size_t bytes, uintptr_t stream) const {
  for (const auto& [address, segment] : segments_) {
    if (!segment.gaps.empty() && *segment.gaps.rbegin() >= bytes &&
        segment.serves(bytes, stream)) {
      return true;
    }
  }
  return false;
}

std::vector<Range> ranges_of(uintptr_t address, const Segment& segment) {
  std::vector<Range> ranges;
  uintptr_t at = address;
  for (const auto& [begin, block] : segment.blocks) {
    if (begin > at) {
      ranges.push_back({begin - at, nullptr});
    }
    ranges.push_back({block.size, &block});
    at = begin + block.size;
  }
  if (const uintptr_t end = address + segment.size; end > at) {
    ranges.push_back({end - at, nullptr});
  }
  return ranges;
}

} // namespace at::cuda::lms
