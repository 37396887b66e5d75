#include <ATen/cuda/detail/LMSCoreMemoryMap.h>

#include <algorithm>

namespace at::cuda::lms {

Block* MemoryMap::block_of(const void* memory) {
  return layout_.find(reinterpret_cast<uintptr_t>(memory)).second;
}

const Segment* MemoryMap::segment_of(const void* memory) {
  return layout_.find(reinterpret_cast<uintptr_t>(memory)).first;
}

void MemoryMap::occupy(Block* block, Page* page) {
  if (block) {
    page_bytes_ += (page ? block->size : 0) - (block->page ? block->size : 0);
    block->page = page;
  }
}

void MemoryMap::note_unmanaged() {
  peak_unmanaged_ = std::max(peak_unmanaged_, unmanaged());
}

size_t MemoryMap::end_operator(size_t made) {
  const size_t peak = peak_unmanaged_ - std::min(peak_unmanaged_, made);
  peak_unmanaged_ = unmanaged();
  return std::max(peak_unmanaged_, peak);
}

void MemoryMap::forget_unmanaged() {
  peak_unmanaged_ = unmanaged();
}

bool MemoryMap::may_grow(size_t bytes) const {
  const size_t kept = bytes > kSmallSize ? kept_for_small_ : 0;
  // What is cached and empty the allocator gives back by itself.
  return may_reserve(
      layout_.reserved() - layout_.empty() + world_.growth_for(bytes) + kept);
}

bool MemoryMap::is_crowded(const Request& request) const {
  return !layout_.has_gap(request.bytes, request.stream) &&
      !may_grow(request.bytes);
}

} // namespace at::cuda::lms
