#pragma once

#include <ATen/cuda/detail/LMSCoreWorld.h>

#include <cstddef>

namespace at::cuda::lms {

// The map of a device's memory: which pages lie where, and how much of it the
// allocator may have.
class MemoryMap {
 public:
  explicit MemoryMap(const World& world) : world_(world) {}

  Layout& layout() {
    return layout_;
  }
  const Layout& layout() const {
    return layout_;
  }
  // The block that is the memory's; null if the map does not know it.
  Block* block_of(const void* memory);
  const Segment* segment_of(const void* memory);
  // The block belongs to the page from now on; to nobody if null.
  void occupy(Block* block, Page* page);

  // Bytes that are allocated and no page's.
  size_t unmanaged() const {
    return layout_.allocated() - page_bytes_;
  }
  // They may be more than at any time since the last operator.
  void note_unmanaged();
  // The most that they were since, less what has become `made` bytes of pages.
  size_t end_operator(size_t made);
  // All since is the engine's own doing.
  void forget_unmanaged();

  // Bytes that the allocator may reserve, if that is limited.
  void set_limit(size_t bytes) {
    limit_ = bytes;
  }
  size_t limit() const {
    return limit_;
  }
  void set_limited(bool is_limited) {
    is_limited_ = is_limited;
  }
  bool is_limited() const {
    return is_limited_;
  }
  // Bytes of it that large segments must leave, see Note [One segment].
  void keep_for_small(size_t bytes) {
    kept_for_small_ = bytes;
  }
  size_t kept_for_small() const {
    return kept_for_small_;
  }

  // True if the limit has room for so much from the driver.
  bool may_reserve(size_t bytes) const {
    return !is_limited_ || bytes <= limit_;
  }
  // True if it has room for a new segment that serves the request.
  bool may_grow(size_t bytes) const;
  // True if there is no gap for the request and the allocator may not grow.
  bool is_crowded(const Request& request) const;

 private:
  const World& world_;
  Layout layout_;
  size_t page_bytes_ = 0; // of blocks that have a page
  size_t peak_unmanaged_ = 0; // since the last operator
  size_t limit_ = 0;
  size_t kept_for_small_ = 0;
  bool is_limited_ = false;
};

} // namespace at::cuda::lms
