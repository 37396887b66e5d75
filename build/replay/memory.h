#pragma once

#include <ATen/cuda/detail/LMSLayout.h>

#include "link.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace lms_replay {

// Bytes of the block that the caching allocator takes for so many.
inline size_t block_size(size_t bytes) {
  return at::cuda::lms::round_up(
      std::max<size_t>(bytes, 1), at::cuda::lms::kMinBlockSize);
}

// The device's memory: one segment, filled best fit by the caching allocator's
// rules. Memory can be released while a copy still uses it; its next owner is
// told how long to wait.
class Memory {
 public:
  explicit Memory(size_t capacity);

  struct Place {
    uintptr_t address;
    CopyIds pending; // copies of earlier owners that have not ended
  };
  // Nothing if no free range is large enough. `now` is not after the time at
  // which the work that comes next can begin.
  std::optional<Place> allocate(size_t bytes, const Link& link, Time now);
  // These copies still use the memory, besides those of earlier owners.
  void release(uintptr_t address, const CopyIds& pending);

  void set_page(uintptr_t address, at::cuda::lms::Page* page) {
    layout_.find(address).second->page = page;
  }
  // Bytes of the block that begins there.
  size_t size_at(uintptr_t address) {
    return layout_.find(address).second->size;
  }
  const at::cuda::lms::Layout& layout() const {
    return layout_;
  }
  // The longest run of free blocks and evictable pages, bytes.
  size_t largest_window() const;

 private:
  struct Use {
    uintptr_t begin;
    uintptr_t end;
    CopyId copy;
  };

  void add_free(uintptr_t address, size_t size);
  void remove_free(std::map<uintptr_t, size_t>::iterator range);

  at::cuda::lms::Layout layout_;
  std::map<uintptr_t, size_t> free_; // free ranges, no two of them adjacent
  std::set<std::pair<size_t, uintptr_t>> free_by_size_;
  std::vector<Use> uses_; // of memory that was released before they end
};

} // namespace lms_replay
