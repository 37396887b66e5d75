#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace at::cuda::lms {

constexpr size_t round_up(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// What a policy knows of a managed storage.
struct Page {
  uint64_t id = 0; // never given to another; 0: memory that is being left, see
                   // Device::Leaving
  size_t bytes = 0; // of the storage, not rounded to the allocator's block
  bool resident = false; // on the device, or on its way there
  bool evictable = false; // resident, not pinned, not held
  bool clean = false; // the host has its bytes: evicting it copies nothing
  // With id 0: bytes to be copied to the host until the memory is free.
  size_t bytes_until_left = 0;
  // The rest is the policy's own, in operators seen; kNever: none is known.
  uint64_t last_use = 0;
  uint64_t last_slot = 0;
  uint64_t next_use = kNever;
  uint64_t death = kNever;

  static constexpr uint64_t kNever = ~uint64_t{0};
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
  std::multiset<size_t> gaps; // their sizes, in bytes

  // A segment serves either small or large requests; which of the two shows in
  // the size of any of its blocks. One without blocks serves both kinds here:
  // the allocator may give it back to the driver and take it anew.
  bool serves(size_t bytes, uintptr_t on_stream) const;
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
  // Bytes of the blocks.
  size_t allocated() const {
    return allocated_;
  }
  // Bytes of segments without blocks that the allocator may give back.
  size_t empty() const;
  // True if a free range of that size can serve an allocation on the stream.
  bool has_gap(size_t bytes, uintptr_t stream) const;

 private:
  Segments::iterator segment_of(uintptr_t address);
  // Begin and end of the free range around an address that no block covers.
  static std::pair<uintptr_t, uintptr_t> gap_around(
      Segments::iterator segment,
      uintptr_t address);
  static void find_gaps(Segments::iterator segment);

  Segments segments_;
  size_t reserved_ = 0;
  size_t allocated_ = 0;
};

// A free range or an allocated block, in address order.
struct Range {
  size_t size;
  const Block* block; // null: free
};

// The ranges that make up a segment, free ones included, in address order.
std::vector<Range> ranges_of(uintptr_t address, const Segment& segment);

} // namespace at::cuda::lms
