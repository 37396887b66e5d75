// Unit tests of the engine's layout and policy, which need neither PyTorch nor
// CUDA. Run without arguments; prints a line per test, exits with the number of
// those that failed.

#include <ATen/cuda/detail/LMSCoreLayout.h>
#include <ATen/cuda/detail/LMSCorePolicy.h>

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <set>
#include <utility>
#include <vector>

using namespace at::cuda::lms;

namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr uintptr_t kBase = uintptr_t{1} << 32;

Segment segment_of(
    size_t size,
    uintptr_t stream = 0,
    bool is_private = false,
    bool is_expandable = false) {
  Segment segment;
  segment.size = size;
  segment.stream = stream;
  segment.is_private = is_private;
  segment.is_expandable = is_expandable;
  return segment;
}

size_t size_at(Layout& layout, uintptr_t address) {
  auto [segment, block] = layout.find(address);
  return block ? block->size : 0;
}

// Sizes of the ranges of the segment, negative where allocated.
std::vector<long> shape(const Layout& layout, uintptr_t address) {
  std::vector<long> sizes;
  for (const Range& range : ranges_of(address, layout.segments().at(address))) {
    const auto size = static_cast<long>(range.size);
    sizes.push_back(range.block ? -size : size);
  }
  return sizes;
}

// A layout with pages that the test names by a letter.
struct World {
  Layout layout;
  std::deque<Page> pages; // stable addresses
  std::unique_ptr<Policy> policy = make_original_policy();

  Page* put(
      uintptr_t address,
      size_t bytes,
      uint64_t last_use,
      bool evictable = true) {
    layout.add_block(address, bytes);
    Page& page = pages.emplace_back();
    page.id = pages.size();
    page.bytes = bytes;
    page.resident = true;
    page.evictable = evictable;
    page.last_use = last_use;
    layout.find(address).second->page = &pages.back();
    return &pages.back();
  }
  std::set<Page*> window(size_t bytes, uintptr_t stream = 0) {
    const auto chosen = policy->choose_window(layout, {bytes, stream});
    const std::set<Page*> unique(chosen.begin(), chosen.end());
    EXPECT_TRUE(unique.size() == chosen.size());
    return unique;
  }
  std::set<Page*> segments(size_t bytes) {
    const auto chosen = policy->choose_segments(layout, bytes);
    return {chosen.begin(), chosen.end()};
  }
};

// --- segments ---

TEST(LayoutAndPolicy, ExpandableNeighboursMerge) {
  Layout layout;
  layout.add_segment(kBase, segment_of(2 * kMiB, 7, false, true));
  layout.add_segment(kBase + 4 * kMiB, segment_of(2 * kMiB, 7, false, true));
  EXPECT_TRUE(layout.segments().size() == 2);
  layout.add_segment(kBase + 2 * kMiB, segment_of(2 * kMiB, 7, false, true));
  EXPECT_TRUE(layout.segments().size() == 1);
  EXPECT_TRUE(layout.segments().at(kBase).size == 6 * kMiB);
  EXPECT_TRUE(layout.reserved() == 6 * kMiB);
}

TEST(LayoutAndPolicy, MergingKeepsBlocks) {
  Layout layout;
  layout.add_segment(kBase, segment_of(2 * kMiB, 0, false, true));
  layout.add_block(kBase, kMiB);
  layout.add_segment(kBase + 4 * kMiB, segment_of(2 * kMiB, 0, false, true));
  layout.add_block(kBase + 5 * kMiB, kMiB);
  layout.add_segment(kBase + 2 * kMiB, segment_of(2 * kMiB, 0, false, true));
  const long mib = kMiB;
  EXPECT_TRUE((shape(layout, kBase) == std::vector<long>{-mib, 4 * mib, -mib}));
}

TEST(LayoutAndPolicy, SegmentsOfTheirOwnDoNotMerge) {
  // Two calls of cudaMalloc may return neighbours; no block spans both.
  Layout layout;
  layout.add_segment(kBase, segment_of(2 * kMiB));
  layout.add_segment(kBase + 2 * kMiB, segment_of(2 * kMiB));
  EXPECT_TRUE(layout.segments().size() == 2);
}

TEST(LayoutAndPolicy, OtherStreamsAndPoolsDoNotMerge) {
  Layout layout;
  layout.add_segment(kBase, segment_of(2 * kMiB, 0, false, true));
  layout.add_segment(kBase + 2 * kMiB, segment_of(2 * kMiB, 1, false, true));
  layout.add_segment(kBase + 4 * kMiB, segment_of(2 * kMiB, 1, true, true));
  EXPECT_TRUE(layout.segments().size() == 3);
}

TEST(LayoutAndPolicy, RemovingWhole) {
  Layout layout;
  layout.add_segment(kBase, segment_of(2 * kMiB));
  layout.remove_segment(kBase, 2 * kMiB);
  EXPECT_TRUE(layout.segments().empty());
  EXPECT_TRUE(layout.reserved() == 0);
  EXPECT_TRUE(layout.find(kBase).first == nullptr);
}

TEST(LayoutAndPolicy, RemovingTheMiddleSplits) {
  Layout layout;
  layout.add_segment(kBase, segment_of(6 * kMiB, 3, false, true));
  layout.add_block(kBase, kMiB);
  layout.add_block(kBase + 5 * kMiB, kMiB);
  layout.remove_segment(kBase + 2 * kMiB, 2 * kMiB);
  EXPECT_TRUE(layout.segments().size() == 2);
  EXPECT_TRUE(layout.reserved() == 4 * kMiB);
  EXPECT_TRUE(layout.segments().at(kBase).size == 2 * kMiB);
  const Segment& right = layout.segments().at(kBase + 4 * kMiB);
  EXPECT_TRUE(
      right.size == 2 * kMiB && right.stream == 3 && right.is_expandable);
  EXPECT_TRUE(size_at(layout, kBase) == kMiB);
  EXPECT_TRUE(size_at(layout, kBase + 5 * kMiB) == kMiB);
  EXPECT_TRUE(layout.find(kBase + 3 * kMiB).first == nullptr);
}

TEST(LayoutAndPolicy, RemovingAnEnd) {
  Layout layout;
  layout.add_segment(kBase, segment_of(6 * kMiB, 0, false, true));
  layout.remove_segment(kBase, 2 * kMiB);
  layout.remove_segment(kBase + 4 * kMiB, 2 * kMiB);
  EXPECT_TRUE(layout.segments().size() == 1);
  EXPECT_TRUE(layout.segments().at(kBase + 2 * kMiB).size == 2 * kMiB);
  EXPECT_TRUE(layout.reserved() == 2 * kMiB);
}

TEST(LayoutAndPolicy, UnknownAddressesAreIgnored) {
  Layout layout;
  layout.add_block(kBase, 512);
  layout.remove_block(kBase);
  layout.remove_segment(kBase, kMiB);
  layout.add_segment(kBase, segment_of(2 * kMiB));
  layout.remove_block(kBase + 512);
  EXPECT_TRUE(layout.find(kBase + 2 * kMiB).first == nullptr);
  EXPECT_TRUE(layout.find(kBase - 1).first == nullptr);
  EXPECT_TRUE(layout.find(kBase + 512).second == nullptr);
  EXPECT_TRUE(layout.reserved() == 2 * kMiB);
}

TEST(LayoutAndPolicy, ClearForgetsAll) {
  Layout layout;
  layout.add_segment(kBase, segment_of(2 * kMiB));
  layout.clear();
  EXPECT_TRUE(layout.segments().empty() && layout.reserved() == 0);
}

// --- sizes of blocks ---

TEST(LayoutAndPolicy, SmallBlocksAreRoundedAndSplit) {
  Layout layout;
  layout.add_segment(kBase, segment_of(2 * kMiB));
  layout.add_block(kBase, 1);
  EXPECT_TRUE(size_at(layout, kBase) == 512);
  layout.add_block(kBase + 512, 513);
  EXPECT_TRUE(size_at(layout, kBase + 512) == 1024);
  layout.add_block(kBase + 1536, kMiB);
  EXPECT_TRUE(size_at(layout, kBase + 1536) == kMiB);
}

TEST(LayoutAndPolicy, LargeBlocksKeepARestUpToOneMiB) {
  // The caching allocator splits a large block only if more than 1 MiB is left.
  for (const size_t rest : {size_t{512}, kMiB - 512, kMiB}) {
    Layout layout;
    layout.add_segment(kBase, segment_of(20 * kMiB));
    layout.add_block(kBase, 20 * kMiB - rest);
    EXPECT_TRUE(size_at(layout, kBase) == 20 * kMiB);
  }
  Layout layout;
  layout.add_segment(kBase, segment_of(20 * kMiB));
  layout.add_block(kBase, 19 * kMiB - 512);
  EXPECT_TRUE(size_at(layout, kBase) == 19 * kMiB - 512);
}

TEST(LayoutAndPolicy, ExpandableSegmentsSplitFinely) {
  Layout layout;
  layout.add_segment(kBase, segment_of(20 * kMiB, 0, false, true));
  layout.add_block(kBase, 20 * kMiB - 512);
  EXPECT_TRUE(size_at(layout, kBase) == 20 * kMiB - 512);
}

TEST(LayoutAndPolicy, ABlockEndsWhereTheNextBegins) {
  Layout layout;
  layout.add_segment(kBase, segment_of(20 * kMiB));
  layout.add_block(kBase, 4 * kMiB);
  layout.add_block(kBase + 4 * kMiB, 4 * kMiB);
  layout.add_block(kBase + 8 * kMiB, 4 * kMiB);
  layout.remove_block(kBase + 4 * kMiB);
  layout.add_block(kBase + 4 * kMiB, 3 * kMiB); // 1 MiB is left: stays with it
  EXPECT_TRUE(size_at(layout, kBase + 4 * kMiB) == 4 * kMiB);
}

TEST(LayoutAndPolicy, RangesCoverTheSegment) {
  Layout layout;
  layout.add_segment(kBase, segment_of(2 * kMiB));
  layout.add_block(kBase + 512, 512);
  layout.add_block(kBase + 2048, 512);
  const std::vector<long> expected{
      512, -512, 1024, -512, static_cast<long>(2 * kMiB) - 2560};
  EXPECT_TRUE(shape(layout, kBase) == expected);
  layout.remove_block(kBase + 512);
  layout.remove_block(kBase + 2048);
  EXPECT_TRUE((shape(layout, kBase) == std::vector<long>{2 * long(kMiB)}));
}

// --- the window ---

TEST(LayoutAndPolicy, EvictsTheLeastRecentlyUsed) {
  World world;
  world.layout.add_segment(kBase, segment_of(20 * kMiB));
  std::vector<Page*> pages;
  for (size_t i = 0; i < 5; ++i) {
    const uint64_t uses[] = {5, 3, 9, 1, 7};
    pages.push_back(world.put(kBase + i * 4 * kMiB, 4 * kMiB, uses[i]));
  }
  EXPECT_TRUE((world.window(4 * kMiB) == std::set<Page*>{pages[3]}));
  EXPECT_TRUE((world.window(2 * kMiB) == std::set<Page*>{pages[3]}));
  // The window's most recent use counts: {0, 1} has 5, {3, 4} 7.
  EXPECT_TRUE((world.window(8 * kMiB) == std::set<Page*>{pages[0], pages[1]}));
  EXPECT_TRUE(world.window(20 * kMiB).size() == 5);
}

TEST(LayoutAndPolicy, TheMostRecentUseInAWindowCounts) {
  World world;
  world.layout.add_segment(kBase, segment_of(20 * kMiB));
  world.put(kBase, 4 * kMiB, 9);
  world.put(kBase + 4 * kMiB, 4 * kMiB, 1);
  world.put(kBase + 8 * kMiB, 4 * kMiB, 1, /*evictable=*/false);
  Page* one = world.put(kBase + 12 * kMiB, 4 * kMiB, 2);
  Page* two = world.put(kBase + 16 * kMiB, 4 * kMiB, 3);
  EXPECT_TRUE((world.window(8 * kMiB) == std::set<Page*>{one, two}));
}

TEST(LayoutAndPolicy, CountsFreeNeighbours) {
  World world;
  world.layout.add_segment(kBase, segment_of(20 * kMiB));
  world.put(kBase, 8 * kMiB, 1); // the oldest, but 8 MiB are not enough
  Page* recent = world.put(kBase + 8 * kMiB, 4 * kMiB, 2);
  // 8 MiB free behind it
  EXPECT_TRUE((world.window(12 * kMiB) == std::set<Page*>{recent}));
}

TEST(LayoutAndPolicy, CountsFreeNeighboursOnBothSides) {
  World world;
  world.layout.add_segment(kBase, segment_of(20 * kMiB));
  Page* first = world.put(kBase, 4 * kMiB, 1);
  Page* middle = world.put(kBase + 8 * kMiB, 4 * kMiB, 5);
  Page* last = world.put(kBase + 16 * kMiB, 4 * kMiB, 6);
  EXPECT_TRUE(
      (world.window(12 * kMiB) == std::set<Page*>{middle}) ||
      (world.window(12 * kMiB) == std::set<Page*>{first, middle}));
  EXPECT_TRUE((world.window(8 * kMiB) == std::set<Page*>{first}));
  EXPECT_TRUE(
      (world.window(20 * kMiB) == std::set<Page*>{first, middle, last}));
}

TEST(LayoutAndPolicy, PrefersTheOldAndThenTheFewBytes) {
  World world;
  world.layout.add_segment(kBase, segment_of(20 * kMiB));
  world.put(kBase, 8 * kMiB, 4);
  Page* small = world.put(kBase + 8 * kMiB, 4 * kMiB, 4);
  world.put(kBase + 12 * kMiB, 8 * kMiB, 4);
  EXPECT_TRUE((world.window(4 * kMiB) == std::set<Page*>{small}));
}

TEST(LayoutAndPolicy, RefusesPinnedAndForeignBlocks) {
  World world;
  world.layout.add_segment(kBase, segment_of(20 * kMiB));
  Page* left = world.put(kBase, 4 * kMiB, 1);
  world.put(kBase + 4 * kMiB, 4 * kMiB, 1, /*evictable=*/false);
  world.layout.add_block(kBase + 8 * kMiB, 4 * kMiB); // not managed
  Page* right = world.put(kBase + 12 * kMiB, 8 * kMiB, 9);
  EXPECT_TRUE((world.window(4 * kMiB) == std::set<Page*>{left}));
  EXPECT_TRUE((world.window(8 * kMiB) == std::set<Page*>{right}));
  EXPECT_TRUE(world.window(12 * kMiB).empty());
}

TEST(LayoutAndPolicy, SeparatesStreams) {
  World world;
  world.layout.add_segment(kBase, segment_of(20 * kMiB, 1));
  world.layout.add_segment(kBase + 100 * kMiB, segment_of(20 * kMiB, 2));
  Page* one = world.put(kBase, 20 * kMiB, 1);
  Page* two = world.put(kBase + 100 * kMiB, 20 * kMiB, 9);
  EXPECT_TRUE((world.window(4 * kMiB, 1) == std::set<Page*>{one}));
  EXPECT_TRUE((world.window(4 * kMiB, 2) == std::set<Page*>{two}));
  EXPECT_TRUE(world.window(4 * kMiB, 3).empty());
}

TEST(LayoutAndPolicy, SeparatesPrivatePools) {
  World world;
  world.layout.add_segment(kBase, segment_of(20 * kMiB, 0, true));
  world.put(kBase, 20 * kMiB, 1);
  EXPECT_TRUE(world.window(4 * kMiB).empty());
  EXPECT_TRUE(world.segments(4 * kMiB).empty());
}

TEST(LayoutAndPolicy, SeparatesSmallAndLargeSegments) {
  World world;
  world.layout.add_segment(kBase, segment_of(2 * kMiB));
  world.layout.add_segment(kBase + 100 * kMiB, segment_of(20 * kMiB));
  Page* small = world.put(kBase, kMiB, 9);
  Page* large = world.put(kBase + 100 * kMiB, 20 * kMiB, 1);
  EXPECT_TRUE(
      (world.window(kMiB) == std::set<Page*>{}) ||
      (world.window(kMiB) == std::set<Page*>{small}));
  EXPECT_TRUE((world.window(2 * kMiB) == std::set<Page*>{large}));
  EXPECT_TRUE(world.window(kMiB).count(large) == 0);
}

TEST(LayoutAndPolicy, NoSegmentIsLargeEnough) {
  World world;
  world.layout.add_segment(kBase, segment_of(20 * kMiB));
  world.put(kBase, 20 * kMiB, 1);
  EXPECT_TRUE(world.window(21 * kMiB).empty());
}

TEST(LayoutAndPolicy, NeverSpansSegments) {
  World world;
  world.layout.add_segment(kBase, segment_of(20 * kMiB));
  world.layout.add_segment(kBase + 20 * kMiB, segment_of(20 * kMiB));
  world.put(kBase, 20 * kMiB, 1);
  world.put(kBase + 20 * kMiB, 20 * kMiB, 1);
  EXPECT_TRUE(world.window(24 * kMiB).empty());
}

// --- whole segments ---

TEST(LayoutAndPolicy, FreesTheOldestSegments) {
  World world;
  std::vector<Page*> pages;
  for (size_t i = 0; i < 3; ++i) {
    const uint64_t uses[] = {5, 1, 3};
    const uintptr_t at = kBase + i * 100 * kMiB;
    world.layout.add_segment(at, segment_of(20 * kMiB));
    pages.push_back(world.put(at, 16 * kMiB, uses[i]));
  }
  EXPECT_TRUE((world.segments(20 * kMiB) == std::set<Page*>{pages[1]}));
  EXPECT_TRUE(
      (world.segments(21 * kMiB) == std::set<Page*>{pages[1], pages[2]}));
  EXPECT_TRUE(world.segments(60 * kMiB).size() == 3);
  EXPECT_TRUE(world.segments(61 * kMiB).empty());
}

TEST(LayoutAndPolicy, EmptySegmentsCountAsFree) {
  World world;
  world.layout.add_segment(kBase, segment_of(20 * kMiB));
  world.layout.add_segment(kBase + 100 * kMiB, segment_of(20 * kMiB));
  Page* page = world.put(kBase + 100 * kMiB, 20 * kMiB, 1);
  EXPECT_TRUE(world.segments(20 * kMiB).empty()); // nothing needs to be evicted
  EXPECT_TRUE((world.segments(40 * kMiB) == std::set<Page*>{page}));
}

TEST(LayoutAndPolicy, SegmentsWithAPinnedBlockStay) {
  World world;
  world.layout.add_segment(kBase, segment_of(20 * kMiB));
  world.put(kBase, 4 * kMiB, 1);
  world.put(kBase + 4 * kMiB, 4 * kMiB, 1, /*evictable=*/false);
  EXPECT_TRUE(world.segments(4 * kMiB).empty());
}

TEST(LayoutAndPolicy, SegmentsOfAllStreamsCanBeFreed) {
  World world;
  world.layout.add_segment(kBase, segment_of(20 * kMiB, 1));
  world.layout.add_segment(kBase + 100 * kMiB, segment_of(20 * kMiB, 2));
  world.put(kBase, 20 * kMiB, 1);
  world.put(kBase + 100 * kMiB, 20 * kMiB, 2);
  EXPECT_TRUE(world.segments(40 * kMiB).size() == 2);
}

TEST(LayoutAndPolicy, GapsAreFoundWhereARequestCanBeServed) {
  World world;
  world.layout.add_segment(kBase, segment_of(20 * kMiB, 7));
  world.put(kBase + 4 * kMiB, 12 * kMiB, 1);
  EXPECT_TRUE(world.layout.has_gap(4 * kMiB, 7));
  EXPECT_TRUE(!world.layout.has_gap(4 * kMiB, 8)); // another stream's
  EXPECT_TRUE(!world.layout.has_gap(kMinBlockSize, 7)); // a large segment
  EXPECT_TRUE(!world.layout.has_gap(5 * kMiB, 7)); // two gaps of 4 MiB
  EXPECT_TRUE(world.layout.allocated() == 12 * kMiB);
  EXPECT_TRUE(world.layout.empty() == 0);
  world.layout.remove_block(kBase + 4 * kMiB);
  EXPECT_TRUE(world.layout.allocated() == 0);
  EXPECT_TRUE(world.layout.empty() == 20 * kMiB);
}

// --- use ---

TEST(LayoutAndPolicy, OperatorsMarkWhatTheyUse) {
  World world;
  world.layout.add_segment(kBase, segment_of(20 * kMiB));
  Page* one = world.put(kBase, 10 * kMiB, 0);
  Page* two = world.put(kBase + 10 * kMiB, 10 * kMiB, 0);
  Actions actions;
  world.policy->on_operator({1, 0, {{one, false}, {two, true}}}, actions);
  EXPECT_TRUE(one->last_use == two->last_use && one->last_use > 0);
  world.policy->on_operator({2, 0, {{one, false}}}, actions);
  EXPECT_TRUE(one->last_use > two->last_use);
  EXPECT_TRUE((world.window(10 * kMiB) == std::set<Page*>{two}));
  EXPECT_TRUE(actions.evict.empty() && actions.fetch.empty());
}

} // namespace
