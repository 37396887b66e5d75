#pragma once

#include <ATen/cuda/detail/LMSCoreBooks.h>

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace lms_replay {

// Bytes of the block that the caching allocator takes for so many.
size_t block_size(size_t bytes);
// False for a storage that the allocator keeps in a segment of small ones.
bool is_paged(size_t bytes);

// The device's memory: one segment, filled best fit by the caching allocator's
// rules. It keeps the books of a pager as the allocator's trace events do.
class Memory {
 public:
  // It is all that the pager may have.
  Memory(size_t capacity, at::cuda::lms::Books& books);

  // Nothing if no free range is large enough. Whoever uses it waits for what is
  // added to `pending`.
  std::optional<uintptr_t> allocate(
      size_t bytes,
      at::cuda::lms::Events& pending);
  void release(uintptr_t address);
  // The longest run of free blocks and evictable pages, bytes.
  size_t largest_window() const;

 private:
  size_t size_at(uintptr_t address);
  void add_free(uintptr_t address, size_t size);
  void remove_free(std::map<uintptr_t, size_t>::iterator range);

  at::cuda::lms::Books& books_;
  at::cuda::lms::Layout& layout_;
  std::map<uintptr_t, size_t> free_; // free ranges, no two of them adjacent
  std::set<std::pair<size_t, uintptr_t>> free_by_size_;
};

} // namespace lms_replay
