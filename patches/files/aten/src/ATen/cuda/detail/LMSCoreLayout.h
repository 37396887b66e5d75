#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <map>
#include <utility>
#include <vector>

namespace at::cuda::lms {

constexpr size_t round_up(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// Note [Hints]
// ~~~~~~~~~~~~
// A program may say of a storage that it should be evicted last or first,
// whether its bytes should be made again rather than be copied, and that they
// should go to disk last (torch.cuda.lms.hint). Policies prefer what hints ask
// for, and memory that is short wins: what should stay goes where nothing else
// can, which is counted (DeviceStats::overruled). Nothing else depends on
// hints, so results do not.
//
// A plan is made of uses of pages, and pages that are made anew in each
// iteration are other ones by then. So the history keeps the hint of each use.
// One that is given between two uses holds for the time between them, too.
struct Hint {
  // What is greater is evicted first.
  enum class Turn : uint8_t { kLast, kByPlan, kFirst, kCount };
  enum class Again : uint8_t { kByPlan, kNever, kPreferred, kCount };

  Turn turn = Turn::kByPlan;
  Again again = Again::kByPlan;
  bool on_host = false; // goes to disk last
};

// What a policy knows of a managed storage.
struct Page {
  uint64_t id = 0; // never given to another
  size_t bytes = 0; // of the storage, not rounded to the allocator's block
  bool resident = false; // on the device, also while it moves within it
  bool evictable = false; // resident, not pinned, not held
  bool clean = false; // its bytes are elsewhere: evicting it copies nothing
  bool dropped = false; // nobody has its bytes: they are made again when used
  Hint hint; // the program's
  // It is to be dropped when its memory is needed, and can be made again so
  // much faster than it can be copied; 0 otherwise.
  uint32_t gain = 0;
  // No storage's, but memory that one was evicted from while its bytes are
  // still being written back. It is free once so many bytes have been written
  // back, of all that ever are.
  bool draining = false;
  uint64_t drained_at = 0;
  // The page-in that it came with, or comes with, of all that there ever were.
  uint64_t arrives_at = 0;
  // The rest is the policy's own, in operators seen; kNever: none is known.
  uint64_t job = 0; // that used it last, whose operators are counted
  uint64_t first_use = 0;
  uint64_t last_use = 0;
  uint64_t last_slot = 0;
  uint64_t next_use = kNever;
  uint64_t death = kNever;
  // A page that was dropped is made from it then, the first of several.
  uint64_t makes_at = kNever;
  // Left against the plan and was asked for since its last use.
  bool was_stray = false;
  // Neighbours among the pages that have been used, by last use.
  Page* older = nullptr;
  Page* newer = nullptr;

  uint64_t needed_at() const {
    return std::min(next_use, makes_at);
  }

  static constexpr uint64_t kNever = ~uint64_t{0};
};

// Constants of the caching allocator, bytes.
constexpr size_t kMinBlockSize = 512; // every block is a multiple of it
constexpr size_t kSmallSize = size_t{1}
    << 20; // larger ones come from other segments

// Bytes of the limit that are left for the segments of small storages where all
// else is one segment; `small` is what they have when it is taken. See Note
// [One segment].
size_t rest_for_small(size_t limit, size_t small);

// An allocated range of device memory.
struct Block {
  size_t size = 0;
  Page* page = nullptr; // null: memory that LMS does not manage
};

using Blocks = std::map<uintptr_t, Block>; // by address

// A contiguous range that the caching allocator got from the driver.
struct Segment {
  // Which requests it serves: small or large ones, which shows in the size of
  // any of its blocks. One without blocks serves both kinds: the allocator may
  // give it back to the driver and take it anew.
  enum class Kind { kEmpty, kSmall, kLarge };

  size_t size = 0;
  uintptr_t stream = 0; // blocks are handed to allocations on this stream only
  bool is_private = false; // belongs to a graph's or a user's memory pool
  bool is_expandable = false; // mapped piece by piece
  Blocks blocks; // the gaps between them are free
  Kind kind = Kind::kEmpty; // kept by the Layout
};

// The segments of one stream and kind, without private ones.
struct Shelf {
  std::map<uintptr_t, const Segment*> segments; // by address
  std::map<size_t, size_t> gaps; // how many free ranges there are, by size
  size_t free = 0; // bytes of the gaps
  size_t blocks = 0; // of all segments
};

// Mirror of the caching allocator's segments and blocks on one device, kept up
// to date from its trace events. It is what policies search for contiguous
// space; it knows nothing of PyTorch so that a simulation can fill it too.
// Not thread safe.
class Layout {
 public:
  using Segments = std::map<uintptr_t, Segment>; // by address

  Layout() = default;
  Layout(const Layout&) = delete; // shelves refer to segments
  Layout& operator=(const Layout&) = delete;

  void clear();
  // Blocks of so many bytes are never split: they take the whole free range.
  void set_max_split(size_t bytes) {
    max_split_ = bytes;
  }
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
  size_t empty() const {
    return empty_;
  }
  // The segments with blocks whose memory can serve an allocation of that size
  // on the stream.
  const Shelf& shelf(size_t bytes, uintptr_t stream) const;
  // Bytes of the largest free range, without those of private segments.
  size_t largest_gap() const;
  // True if a free range of that size can serve an allocation on the stream.
  bool has_gap(size_t bytes, uintptr_t stream) const;

 private:
  using Shelves = std::map<std::pair<uintptr_t, Segment::Kind>, Shelf>;

  Segments::iterator segment_of(uintptr_t address);
  const Shelf& find_shelf(uintptr_t stream, Segment::Kind kind) const;
  // Shelves must know of each segment, and a segment that gets its first block
  // or loses its last one changes shelves. Linear in the segment's blocks.
  void put_on_shelf(Segments::iterator segment);
  void take_off_shelf(Segments::iterator segment);
  // Tells the shelf that the segment, which has others, got (1) or lost (-1) a
  // block, and the sizes of gaps that went and came; 0 stands for none.
  void note_block(
      const Segment& segment,
      int change,
      std::initializer_list<size_t> old_gaps,
      std::initializer_list<size_t> new_gaps);
  // Begin and end of the free range around an address that no block covers.
  static std::pair<uintptr_t, uintptr_t> gap_around(
      Segments::iterator segment,
      uintptr_t address);

  Segments segments_;
  Shelves shelves_; // by stream and kind
  size_t max_split_ = std::numeric_limits<size_t>::max();
  size_t reserved_ = 0;
  size_t allocated_ = 0;
  size_t empty_ = 0;
};

// A free range or an allocated block, in address order.
struct Range {
  size_t size;
  const Block* block; // null: free
};

// The ranges that make up a segment, free ones included, in address order.
std::vector<Range> ranges_of(uintptr_t address, const Segment& segment);

} // namespace at::cuda::lms
