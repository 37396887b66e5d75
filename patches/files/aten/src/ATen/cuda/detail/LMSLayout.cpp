#include <ATen/cuda/detail/LMSLayout.h>

#include <iterator>

namespace at::cuda::lms {

void Layout::clear() {
  segments_.clear();
  reserved_ = 0;
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
    return true;
  };
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
        end - hole_end, left.stream, left.is_private, left.is_expandable, {}};
    auto first = left.blocks.lower_bound(hole_end);
    while (first != left.blocks.end()) {
      right.blocks.insert(left.blocks.extract(first++));
    }
    segments_.emplace(hole_end, std::move(right));
  }
  if (address > begin) {
    left.size = address - begin;
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
  auto next = segment.blocks.upper_bound(address);
  const uintptr_t end =
      next == segment.blocks.end() ? it->first + segment.size : next->first;
  const size_t range = end - address;
  size_t size = round_up(requested, kMinBlockSize);
  // A rest that is too small to be worth splitting off stays with the block.
  const bool splits_finely = size <= kSmallSize || segment.is_expandable;
  const size_t smallest_rest = splits_finely ? kMinBlockSize : kSmallSize + 1;
  if (size > range || range - size < smallest_rest) {
    size = range;
  }
  segment.blocks[address] = Block{size, nullptr};
}

void Layout::remove_block(uintptr_t address) {
  auto it = segment_of(address);
  if (it != segments_.end()) {
    it->second.blocks.erase(address);
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
