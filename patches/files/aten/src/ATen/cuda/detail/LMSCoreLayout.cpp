#include <ATen/cuda/detail/LMSCoreLayout.h>

#include <algorithm>
#include <iterator>

namespace at::cuda::lms {

namespace {

Segment::Kind kind_of(size_t bytes) {
  return bytes <= kSmallSize ? Segment::Kind::kSmall : Segment::Kind::kLarge;
}

// A size of 0 stands for no gap.
void add_gap(Shelf& shelf, size_t size) {
  if (size > 0) {
    ++shelf.gaps[size];
    shelf.free += size;
  }
}

void remove_gap(Shelf& shelf, size_t size) {
  const auto gap = shelf.gaps.find(size);
  if (gap == shelf.gaps.end()) {
    return;
  }
  shelf.free -= size;
  if (--gap->second == 0) {
    shelf.gaps.erase(gap);
  }
}

} // namespace

void Layout::clear() {
  segments_.clear();
  shelves_.clear();
  reserved_ = allocated_ = empty_ = 0;
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
    take_off_shelf(left);
    take_off_shelf(right);
    left->second.size += right->second.size;
    left->second.blocks.merge(right->second.blocks);
    segments_.erase(right);
    put_on_shelf(left);
    return true;
  };
  put_on_shelf(it);
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
  take_off_shelf(it);
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
    put_on_shelf(segments_.emplace(hole_end, std::move(right)).first);
  }
  if (address > begin) {
    left.size = address - begin;
    put_on_shelf(it);
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
  const bool is_whole = !splits_finely && size >= max_split_;
  if (is_whole || size > range || range - size < smallest_rest) {
    size = range;
  }
  allocated_ += size;
  if (segment.blocks.empty()) {
    take_off_shelf(it);
    segment.blocks[address] = Block{size, nullptr};
    put_on_shelf(it);
  } else {
    segment.blocks[address] = Block{size, nullptr};
    note_block(segment, 1, {end - begin}, {address - begin, range - size});
  }
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
  allocated_ -= size;
  if (segment.blocks.size() == 1) {
    take_off_shelf(it);
    segment.blocks.clear();
    put_on_shelf(it);
    return;
  }
  segment.blocks.erase(block);
  const auto [begin, end] = gap_around(it, address);
  note_block(
      segment, -1, {address - begin, end - address - size}, {end - begin});
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

void Layout::put_on_shelf(Segments::iterator it) {
  auto& [address, segment] = *it;
  segment.kind = segment.blocks.empty()
      ? Segment::Kind::kEmpty
      : kind_of(segment.blocks.begin()->second.size);
  if (segment.is_private) {
    return;
  }
  if (segment.kind == Segment::Kind::kEmpty) {
    empty_ += segment.size;
  }
  Shelf& shelf = shelves_[{segment.stream, segment.kind}];
  shelf.segments.emplace(address, &segment);
  shelf.blocks += segment.blocks.size();
  for (const Range& range : ranges_of(address, segment)) {
    if (!range.block) {
      add_gap(shelf, range.size);
    }
  }
}

void Layout::take_off_shelf(Segments::iterator it) {
  const auto& [address, segment] = *it;
  if (segment.is_private) {
    return;
  }
  if (segment.kind == Segment::Kind::kEmpty) {
    empty_ -= segment.size;
  }
  Shelf& shelf = shelves_[{segment.stream, segment.kind}];
  shelf.segments.erase(address);
  shelf.blocks -= segment.blocks.size();
  for (const Range& range : ranges_of(address, segment)) {
    if (!range.block) {
      remove_gap(shelf, range.size);
    }
  }
}

void Layout::note_block(
    const Segment& segment,
    int change,
    std::initializer_list<size_t> old_gaps,
    std::initializer_list<size_t> new_gaps) {
  if (segment.is_private) {
    return;
  }
  Shelf& shelf = shelves_[{segment.stream, segment.kind}];
  shelf.blocks += change;
  for (const size_t size : old_gaps) {
    remove_gap(shelf, size);
  }
  for (const size_t size : new_gaps) {
    add_gap(shelf, size);
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

const Shelf& Layout::shelf(size_t bytes, uintptr_t stream) const {
  return find_shelf(stream, kind_of(bytes));
}

const Shelf& Layout::find_shelf(uintptr_t stream, Segment::Kind kind) const {
  static const Shelf none;
  const auto shelf = shelves_.find({stream, kind});
  return shelf == shelves_.end() ? none : shelf->second;
}

size_t Layout::largest_gap() const {
  size_t largest = 0;
  for (const auto& [kind, shelf] : shelves_) {
    if (!shelf.gaps.empty()) {
      largest = std::max(largest, shelf.gaps.rbegin()->first);
    }
  }
  return largest;
}

bool Layout::has_gap(size_t bytes, uintptr_t stream) const {
  const auto has = [bytes](const Shelf& shelf) {
    return !shelf.gaps.empty() && shelf.gaps.rbegin()->first >= bytes;
  };
  return has(shelf(bytes, stream)) ||
      has(find_shelf(stream, Segment::Kind::kEmpty));
}

size_t rest_for_small(size_t limit, size_t small) {
  // Enough for most programs, where that is little of the limit, and at least a
  // part of it; and a multiple of what they have by now, since the optimizer's
  // state is often yet to come. Where they have much of the memory, they are
  // not parameters, and grow by a part of the limit at most.
  constexpr size_t kEnough = size_t{256} << 20;
  constexpr size_t kMostPart = 64;
  constexpr size_t kLeastPart = 256;
  constexpr size_t kLeastRest = size_t{8} << 20;
  constexpr size_t kSmallGrowth = 4;
  constexpr size_t kGrowthPart = 16;
  return std::max(
      {limit / kLeastPart,
       std::min(limit / kMostPart, kEnough),
       kLeastRest,
       std::min(kSmallGrowth * small, small + limit / kGrowthPart)});
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
