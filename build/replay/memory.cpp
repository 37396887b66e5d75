#include "memory.h"

#include <algorithm>
#include <iterator>

namespace lms_replay {
namespace {

using at::cuda::lms::kMinBlockSize;

constexpr uintptr_t kBase = uintptr_t{1} << 40; // any address but null

} // namespace

size_t block_size(size_t bytes) {
  return at::cuda::lms::round_up(std::max<size_t>(bytes, 1), kMinBlockSize);
}

bool is_paged(size_t bytes) {
  return block_size(bytes) > at::cuda::lms::kSmallSize;
}

Memory::Memory(size_t capacity, at::cuda::lms::Books& books)
    : books_(books), layout_(books.map.layout()) {
  at::cuda::lms::Segment segment;
  segment.size = capacity / kMinBlockSize * kMinBlockSize;
  layout_.add_segment(kBase, segment);
  add_free(kBase, segment.size);
  books_.map.set_limit(segment.size);
  books_.map.set_limited(true);
  books_.policy->set_capacity(segment.size);
}

std::optional<uintptr_t> Memory::allocate(
    size_t bytes,
    at::cuda::lms::Events& pending) {
  const size_t wanted = block_size(bytes);
  const auto best = free_by_size_.lower_bound({wanted, 0});
  if (best == free_by_size_.end()) {
    return std::nullopt;
  }
  const auto [range, address] = *best;
  layout_.add_block(address, wanted);
  const size_t size = size_at(address);
  remove_free(free_.find(address));
  if (size < range) {
    add_free(address + size, range - size);
  }
  at::cuda::lms::append(
      pending, books_.draining.handover().take(address, size));
  return address;
}

// Bytes of the block that begins there.
size_t Memory::size_at(uintptr_t address) {
  return layout_.find(address).second->size;
}

void Memory::release(uintptr_t address) {
  size_t size = size_at(address);
  layout_.remove_block(address);
  auto next = free_.lower_bound(address);
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == address) {
      address = previous->first;
      size += previous->second;
      remove_free(previous);
    }
  }
  if (next != free_.end() && address + size == next->first) {
    size += next->second;
    remove_free(next);
  }
  add_free(address, size);
}

size_t Memory::largest_window() const {
  size_t largest = 0;
  size_t window = 0;
  for (const auto& [address, segment] : layout_.segments()) {
    for (const auto& range : at::cuda::lms::ranges_of(address, segment)) {
      const bool movable =
          !range.block || (range.block->page && range.block->page->evictable);
      window = movable ? window + range.size : 0;
      largest = std::max(largest, window);
    }
  }
  return largest;
}

void Memory::add_free(uintptr_t address, size_t size) {
  if (size > 0) {
    free_.emplace(address, size);
    free_by_size_.emplace(size, address);
  }
}

void Memory::remove_free(std::map<uintptr_t, size_t>::iterator range) {
  free_by_size_.erase({range->second, range->first});
  free_.erase(range);
}

} // namespace lms_replay
