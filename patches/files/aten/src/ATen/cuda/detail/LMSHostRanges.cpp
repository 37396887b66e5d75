#include <ATen/cuda/detail/LMSHostRanges.h>

#include <iterator>

namespace at::cuda::lms {

void HostRanges::add_slab(char* begin, size_t bytes) {
  slabs_[begin] = bytes;
  insert(begin, bytes);
}

bool HostRanges::remove_slab(char* begin) {
  const auto slab = slabs_.find(begin);
  const auto range = free_.find(begin);
  if (slab == slabs_.end() || range == free_.end() ||
      range->second != slab->second) {
    return false;
  }
  erase(range);
  slabs_.erase(slab);
  return true;
}

char* HostRanges::take(size_t bytes) {
  const auto best = free_by_size_.lower_bound({bytes, nullptr});
  if (best == free_by_size_.end()) {
    return nullptr;
  }
  const auto [size, begin] = *best;
  erase(free_.find(begin));
  if (size > bytes) {
    insert(begin + bytes, size - bytes);
  }
  return begin;
}

// Merges with free neighbours, which must be of the same slab: slabs may lie
// side by side.
void HostRanges::give_back(char* begin, size_t bytes) {
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
  insert(begin, bytes);
}

void HostRanges::insert(char* begin, size_t bytes) {
  free_[begin] = bytes;
  free_by_size_.emplace(bytes, begin);
}

HostRanges::Free::iterator HostRanges::erase(Free::iterator range) {
  free_by_size_.erase({range->second, range->first});
  return free_.erase(range);
}

} // namespace at::cuda::lms
