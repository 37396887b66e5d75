#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace at::cuda::lms {

constexpr size_t round_up(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// What a policy knows of a managed storage.
struct Page {
  size_t bytes = 0; // of the storage, not rounded to the allocator's block
  uint64_t last_use = 0; // the device's operator count when last pinned
  bool evictable = false; // resident, not pinned, not held
};

// Constants of the caching allocator, bytes.
constexpr size_t kMinBlockSize = 512; // every block is a multiple of it
constexpr size_t kSmallSize = size_t{1}
    << 20; // larger ones come from other segments

// An allocated range of device memory.
struct Block {
  size_t size = 0;
  Page* page = nullptr; // null: memory that LMS does not manage
};

using Blocks = std::map<uintptr_t, Block>; // by address

// A contiguous range that the caching allocator got from the driver.
struct Segment {
  size_t size = 0;
  uintptr_t stream = 0; // blocks are handed to allocations on this stream only
  bool is_private = false; // belongs to a graph's or a user's memory pool
  bool is_expandable = false; // mapped piece by piece
  Blocks blocks; // the gaps between them are free
};

// Mirror of the caching allocator's segments and blocks on one device, kept up
// to date from its trace events. It is what policies search for contiguous
// space; it knows nothing of PyTorch so that a simulation can fill it too.
// Not thread safe.
class Layout {
 public:
  using Segments = std::map<uintptr_t, Segment>; // by address

  void clear();
  // Adjacent ranges of one expandable segment are merged: it grows so.
  void add_segment(uintptr_t address, Segment segment);
  void remove_segment(uintptr_t address, size_t size);
  // The block's size follows from the bytes requested and the free range that
  // it starts, by the caching allocator's rules for rounding and splitting.
  void add_block(uintptr_t address, size_t requested);
  void remove_block(uintptr_t address);

  // The block that starts at the address and its segment; nulls if unknown.
  std::pair<Segment*, Block*> find(uintptr_t address);

  const Segments& segments() const {
    return segments_;
  }
  // Bytes obtained from the driver.
  size_t reserved() const {
    return reserved_;
  }

 private:
  Segments::iterator segment_of(uintptr_t address);

  Segments segments_;
  size_t reserved_ = 0;
};

// A free range or an allocated block, in address order.
struct Range {
  size_t size;
  const Block* block; // null: free
};

// The ranges that make up a segment, free ones included.
std::vector<Range> ranges_of(uintptr_t address, const Segment& segment);

} // namespace at::cuda::lms
