#include <ATen/cuda/detail/LMSHostRanges.h>

#include <algorithm>
#include <iterator>

namespace at::cuda::lms {

void HostRanges::add_slab(char* begin, size_t bytes) {
  slabs_[begin] = {bytes, ++last_number_};
  insert({begin, bytes});
}

bool HostRanges::remove_slab(char* begin) {
  const auto slab = slabs_.find(begin);
  const auto range = free_.find(begin);
  if (slab == slabs_.end() || range == free_.end() ||
      range->second != slab->second.bytes) {
    return false;
  }
  erase(range);
  slabs_.erase(slab);
  return true;
}

HostPieces HostRanges::take(size_t bytes) {
  HostPieces pieces;
  if (bytes > room()) {
    return pieces;
  }
  while (bytes > 0) {
    auto range = free_by_size_.lower_bound({bytes, 0, nullptr});
    if (range == free_by_size_.end()) {
      --range;
    }
    const auto [size, slab, begin] = *range;
    const size_t taken = std::min(size, bytes);
    erase(free_.find(begin));
    if (size > taken) {
      insert({begin + taken, size - taken});
    }
    pieces.push_back({begin, taken});
    bytes -= taken;
  }
  return pieces;
}

size_t HostRanges::room() const {
  size_t room = 0;
  size_t pieces = 0;
  for (auto range = free_by_size_.rbegin(); range != free_by_size_.rend();
       ++range) {
    const size_t bytes = std::get<0>(*range);
    if (pieces == kMostPieces || (pieces > 0 && bytes < kLeastPiece)) {
      break;
    }
    room += bytes;
    ++pieces;
  }
  return room;
}

// Merges with free neighbours, which must be of the same slab: slabs may lie
// side by side.
void HostRanges::give_back(HostRange range) {
  auto [begin, bytes] = range;
  auto next = free_.lower_bound(begin);
  if (next != free_.end() && begin + bytes == next->first &&
      slabs_.count(next->first) == 0) {
    bytes += next->second;
    next = erase(next);
  }
  if (next != free_.begin() && slabs_.count(begin) == 0) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == begin) {
      begin = previous->first;
      bytes += previous->second;
      erase(previous);
    }
  }
  insert({begin, bytes});
}

void HostRanges::insert(HostRange range) {
  free_[range.begin] = range.bytes;
  free_by_size_.insert(key(range));
}

HostRanges::Free::iterator HostRanges::erase(Free::iterator range) {
  free_by_size_.erase(key({range->first, range->second}));
  return free_.erase(range);
}

HostRanges::BySize HostRanges::key(HostRange range) const {
  const auto slab = std::prev(slabs_.upper_bound(range.begin));
  return {range.bytes, slab->second.number, range.begin};
}

} // namespace at::cuda::lms
