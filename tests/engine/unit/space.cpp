// Unit tests of the searches for room: what a bounded search looks at and
// finds, what can be moved aside, and that the layout's books are right.

#include <ATen/cuda/detail/LMSCoreLayout.h>
#include <ATen/cuda/detail/LMSCoreSpace.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <vector>

using namespace at::cuda::lms;

namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kPage = 2 * kMiB;
constexpr uintptr_t kBase = uintptr_t{1} << 40;

// Ranks by last use and hint, and counts how often it is asked.
class Counting final : public Ranking {
 public:
  Cost cost_of(const Page& page) const override {
    ++looks;
    const bool is_kept = page.hint.turn == Hint::Turn::kLast;
    return {page.last_use, 0, page.bytes, is_kept ? page.bytes : 0};
  }
  bool may_evict(const Page& page) const override {
    ++looks;
    return page.next_use != 0;
  }

  mutable size_t looks = 0;
};

// One segment full of pages of 2 MiB.
struct World {
  Layout layout;
  std::deque<Page> pages; // by place
  Counting ranking;
  uintptr_t hand = 0;

  explicit World(size_t count, bool evictable = true) {
    Segment segment;
    segment.size = count * kPage;
    layout.add_segment(kBase, segment);
    for (size_t i = 0; i < count; ++i) {
      layout.add_block(address(i), kPage);
      Page& page = pages.emplace_back();
      page.id = i + 1;
      page.bytes = kPage;
      page.resident = true;
      page.evictable = evictable;
      page.last_use = 1000;
      layout.find(address(i)).second->page = &page;
    }
  }
  static uintptr_t address(size_t place) {
    return kBase + place * kPage;
  }
  void remove(size_t place) {
    layout.remove_block(address(place));
  }
  std::vector<Page*> window(size_t bytes, bool is_ahead = false) {
    ranking.looks = 0;
    Request request{bytes, 0};
    request.ahead = is_ahead ? &pages.front() : nullptr;
    return cheapest_window(layout, request, ranking, &hand);
  }
};

// --- windows ---

TEST(TheSpace, FewBlocksAreSearchedAsAWhole) {
  World world(500);
  world.pages[400].last_use = 1;
  world.hand = World::address(450);
  EXPECT_TRUE((world.window(kPage) == std::vector<Page*>{&world.pages[400]}));
}

TEST(TheSpace, ASearchLooksAtFewOfManyBlocks) {
  World some(5'000);
  World many(100'000);
  EXPECT_TRUE(some.window(kPage).size() == 1 && many.window(kPage).size() == 1);
  EXPECT_TRUE(many.ranking.looks == some.ranking.looks);
  EXPECT_TRUE(some.ranking.looks < 5'000);
}

TEST(TheSpace, SearchesSeeAllBlocksInTurn) {
  World world(20'000);
  world.pages[17'777].last_use = 1;
  size_t searches = 1;
  while (world.window(kPage) != std::vector<Page*>{&world.pages[17'777]} &&
         searches <= world.pages.size()) {
    ++searches;
  }
  EXPECT_TRUE(searches < world.pages.size() / 10);
}

TEST(TheSpace, AnOperatorsRequestIsServedWhereverThereIsRoom) {
  World world(20'000, /*evictable=*/false);
  world.pages[15'000].evictable = true;
  for (int round = 0; round < 3; ++round) { // with the hand anywhere
    EXPECT_TRUE(
        (world.window(kPage) == std::vector<Page*>{&world.pages[15'000]}));
  }
}

TEST(TheSpace, WhatShouldStayIsTakenWhereThereIsNothingElse) {
  World world(20'000);
  for (Page& page : world.pages) {
    page.hint.turn = Hint::Turn::kLast;
  }
  EXPECT_EQ(world.window(kPage).size(), 1u);
  world.pages[17'777].hint = {};
  EXPECT_TRUE(
      (world.window(kPage) == std::vector<Page*>{&world.pages[17'777]}));
}

// --- pieces ---

TEST(TheSpace, PiecesAreWhatIsCheapestToMakeAgainWhereverItLies) {
  World world(10);
  world.remove(9); // free
  world.pages[2].gain = 4;
  world.pages[5].gain = 60;
  world.pages[7].gain = 20;
  const auto pieces = [&](size_t pages, size_t most) {
    const Request request{pages * kPage, 0};
    return cheapest_pieces(world.layout, request, world.ranking, 0, most);
  };
  const size_t joined = 3 * kPage / kCostOfCopy; // what it costs to move
  const size_t dropped = 2 * kPage; // by this ranking
  const std::vector<Page*> best{&world.pages[5], &world.pages[7]};
  EXPECT_TRUE(pieces(3, joined + dropped + 1) == best);
  EXPECT_TRUE(pieces(3, joined + dropped).empty());
  EXPECT_TRUE(pieces(4, 10 * kPage).size() == 3);
  EXPECT_TRUE(pieces(5, 10 * kPage).empty()); // the rest cannot be made
  EXPECT_TRUE(pieces(1, 10 * kPage).empty()); // there is enough
  world.pages[2].hint.turn = Hint::Turn::kLast;
  EXPECT_TRUE(pieces(4, 10 * kPage).empty());
  world.pages[2].hint = {};
  world.pages[5].next_use = 0; // may not be evicted
  EXPECT_TRUE(pieces(4, 10 * kPage).empty());
}

TEST(TheSpace, OneSearchForPiecesLooksAtFewOfManyBlocks) {
  World some(5'000);
  World many(100'000);
  for (World* world : {&some, &many}) {
    for (Page& page : world->pages) {
      page.gain = 1;
    }
    world->ranking.looks = 0;
    const Request request{kPage, 0};
    EXPECT_TRUE(
        cheapest_pieces(world->layout, request, world->ranking, 0, 10 * kPage)
            .size() == 1);
  }
  EXPECT_TRUE(many.ranking.looks == some.ranking.looks);
  EXPECT_TRUE(some.ranking.looks < 5'000);
}

TEST(TheSpace, WhatIsFetchedAheadIsTriedLater) {
  World world(20'000, /*evictable=*/false);
  world.pages[15'000].evictable = true;
  EXPECT_TRUE(world.window(kPage, /*is_ahead=*/true).empty());
  size_t searches = 1;
  while (world.window(kPage, /*is_ahead=*/true).empty() && searches < 20'000) {
    ++searches;
  }
  EXPECT_TRUE(searches < 2'000);
}

TEST(TheSpace, AWindowMayLieAcrossThePiecesOfASearch) {
  // Each window of ten pages that can go begins at a different place.
  for (size_t first = 0; first < 4'990; first += 37) {
    World world(5'000, /*evictable=*/false);
    for (size_t i = first; i < first + 10; ++i) {
      world.pages[i].evictable = true;
    }
    const auto window = world.window(10 * kPage);
    EXPECT_TRUE(window.size() == 10 && window.front() == &world.pages[first]);
  }
}

TEST(TheSpace, ASearchForMuchRoomLooksAtMore) {
  World world(10'000);
  EXPECT_TRUE(world.window(1'000 * kPage).size() == 1'000);
  EXPECT_TRUE(world.ranking.looks < world.pages.size());
}

TEST(TheSpace, MemoryThatIsFreeNextIsTakenWithoutASearch) {
  World world(10);
  Page draining; // more bytes to wait for than any other costs
  draining.draining = true;
  draining.drained_at = 100 * kPage;
  Request request{kPage, 0};
  request.sent = request.drained = 0;
  const auto policy = make_planned_policy();
  EXPECT_TRUE(!policy->choose_window(world.layout, request).front()->draining);
  request.draining = &draining;
  const auto chosen = policy->choose_window(world.layout, request);
  EXPECT_TRUE((chosen == std::vector<Page*>{&draining}));
}

// --- clearings ---

TEST(TheSpace, WhatIsNextToAGapMovesToAnother) {
  World world(10);
  world.remove(2);
  world.remove(4);
  world.remove(8);
  const auto clearing = cheapest_clearing(world.layout, {2 * kPage}, nullptr);
  EXPECT_TRUE(clearing.pages.size() == 1);
  EXPECT_TRUE(!clearing.is_tight);
  EXPECT_TRUE(clearing.extent.end - clearing.extent.begin == 2 * kPage);
}

TEST(TheSpace, NothingMovesIfTheOtherGapsAreTooSmall) {
  World world(10);
  world.remove(2);
  EXPECT_TRUE(
      cheapest_clearing(world.layout, {2 * kPage}, nullptr).pages.empty());
  world.remove(4); // a request of three would need the room of what moves
  EXPECT_TRUE(
      cheapest_clearing(world.layout, {3 * kPage}, nullptr).pages.empty());
}

TEST(TheSpace, AGapIsGivenToOneOfThoseThatMove) {
  World world(20);
  world.remove(2);
  world.remove(10);
  for (const size_t place : {12, 14}) { // half of it is free then
    world.remove(place);
    world.layout.add_block(World::address(place), kMiB);
  }
  for (const size_t place : {9, 11, 13, 15}) {
    world.pages[place].evictable = false;
  }
  EXPECT_TRUE(
      cheapest_clearing(world.layout, {2 * kPage}, nullptr).pages.size() == 1);
  // Enough is free, but two pages would have to go into one gap.
  Request request{3 * kPage};
  const auto clearing = cheapest_clearing(world.layout, request, nullptr);
  EXPECT_TRUE(clearing.is_tight && clearing.pages.size() == 2);
  // For a gap within a clearing no other is tried.
  request.kept = {World::address(19), World::address(20)};
  EXPECT_TRUE(cheapest_clearing(world.layout, request, nullptr).pages.empty());
}

TEST(TheSpace, NoLargerPageThanTheRequestIsMovedToATightPlace) {
  World world(12);
  for (const size_t place : {0, 1, 2, 5, 7}) {
    world.remove(place);
  }
  world.layout.add_block(World::address(1), 2 * kPage);
  Page large;
  large.id = 100;
  large.bytes = 2 * kPage;
  large.resident = large.evictable = true;
  world.layout.find(World::address(1)).second->page = &large;
  for (Page& page : world.pages) {
    page.evictable = false;
  }
  EXPECT_TRUE(
      cheapest_clearing(world.layout, {2 * kPage}, nullptr).pages.empty());
  const auto clearing = cheapest_clearing(world.layout, {3 * kPage}, nullptr);
  EXPECT_TRUE(clearing.is_tight);
  EXPECT_TRUE((clearing.pages == std::vector<Page*>{&large}));
}

TEST(TheSpace, WhatIsKeptForAnotherRequestIsNoGap) {
  World world(10);
  for (const size_t place : {2, 4, 8}) {
    world.remove(place);
  }
  Request request{2 * kPage};
  request.kept = {World::address(2), World::address(4)};
  // A page beside the gap at 4 or 8 moves to the other one of them.
  const auto clearing = cheapest_clearing(world.layout, request, nullptr);
  EXPECT_TRUE(clearing.pages.size() == 1);
  EXPECT_TRUE(clearing.extent.begin >= request.kept.end);
  request.kept = {World::address(2), World::address(5)}; // there is none left
  EXPECT_TRUE(cheapest_clearing(world.layout, request, nullptr).pages.empty());
}

TEST(TheSpace, TheRestOfALargeGapServesAgain) {
  World world(20);
  for (const size_t place : {2, 10, 11}) {
    world.remove(place);
  }
  world.pages[9].evictable = world.pages[12].evictable = false;
  // Both neighbours of the single gap move to the gap of two.
  EXPECT_TRUE(
      cheapest_clearing(world.layout, {3 * kPage}, nullptr).pages.size() == 2);
}

TEST(TheSpace, WhatMovesTakesTheRoomOfWhatDrains) {
  World world(12);
  for (Page& page : world.pages) {
    page.evictable = page.id <= 4;
  }
  const auto drain = [&](size_t place, uint64_t drained_at) {
    Page& page = world.pages[place];
    page.draining = true;
    page.drained_at = drained_at;
    page.evictable = true;
    return &page;
  };
  world.remove(1);
  const Page* later = drain(6, 2 * kPage);
  const Page* sooner = drain(9, kPage);
  Request request{2 * kPage, 0};
  request.sent = 2 * kPage;
  const auto clearing = cheapest_clearing(world.layout, request, nullptr);
  const auto has = [&](const Page* page) {
    return std::count(clearing.pages.begin(), clearing.pages.end(), page) == 1;
  };
  EXPECT_TRUE(clearing.pages.size() == 2 && has(sooner) && !has(later));
  EXPECT_TRUE(
      clearing.extent.end == World::address(3) ||
      clearing.extent.begin == World::address(0));
}

TEST(TheSpace, NeighboursThatDrainAreOneRoom) {
  World world(12);
  for (Page& page : world.pages) {
    page.evictable = false;
  }
  // A page of two beside a gap of one; memory of one each that is draining,
  // in two places, and in two next to each other.
  world.remove(0);
  world.remove(1);
  world.remove(2);
  world.layout.add_block(World::address(1), 2 * kPage);
  Page large;
  large.id = 100;
  large.bytes = 2 * kPage;
  large.resident = large.evictable = true;
  world.layout.find(World::address(1)).second->page = &large;
  Request request{3 * kPage, 0};
  request.sent = 4 * kPage;
  uint64_t drained_at = 0;
  for (const size_t place : {4, 6, 8}) {
    Page& page = world.pages[place];
    page.draining = true;
    page.drained_at = drained_at += kPage;
    page.evictable = true;
  }
  EXPECT_TRUE(cheapest_clearing(world.layout, request, nullptr).pages.empty());
  Page& neighbour = world.pages[9];
  neighbour.draining = true;
  neighbour.drained_at = drained_at += kPage;
  neighbour.evictable = true;
  const auto clearing = cheapest_clearing(world.layout, request, nullptr);
  EXPECT_TRUE(clearing.pages.size() == 5 && clearing.pages.front() == &large);
}

// --- the layout's books ---

TEST(TheSpace, ShelvesAgreeWithTheSegments) {
  Layout layout;
  std::mt19937 random(1);
  constexpr size_t kSegments = 6;
  constexpr size_t kPlaces = 16;
  const auto segment_at = [](size_t i) { return kBase + i * 64 * kMiB; };
  for (size_t i = 0; i < kSegments; ++i) {
    Segment segment;
    segment.size = kPlaces * kPage;
    segment.stream = i % 2;
    segment.is_expandable = i >= 4;
    layout.add_segment(segment_at(i), segment);
  }
  for (int step = 0; step < 5'000; ++step) {
    const size_t i = random() % kSegments;
    const uintptr_t address = segment_at(i) + random() % kPlaces * kPage;
    if (layout.find(address).second) {
      layout.remove_block(address);
    } else {
      layout.add_block(address, i < 3 ? kPage : kMiB);
    }
    size_t empty = 0;
    for (const uintptr_t stream : {0, 1}) {
      for (const size_t bytes : {kMiB, kPage, 3 * kPage}) {
        size_t free = 0;
        size_t blocks = 0;
        size_t largest = 0;
        for (const auto& [begin, segment] : layout.segments()) {
          const bool is_of_kind = segment.blocks.empty() ||
              (segment.blocks.begin()->second.size <= kSmallSize) ==
                  (bytes <= kSmallSize);
          if (segment.stream != stream || !is_of_kind) {
            continue;
          }
          blocks += segment.blocks.size();
          for (const Range& range : ranges_of(begin, segment)) {
            largest = std::max(largest, range.block ? 0 : range.size);
            free += range.block || segment.blocks.empty() ? 0 : range.size;
          }
        }
        EXPECT_TRUE(layout.shelf(bytes, stream).free == free);
        EXPECT_TRUE(layout.shelf(bytes, stream).blocks == blocks);
        EXPECT_TRUE(layout.has_gap(bytes, stream) == (largest >= bytes));
      }
    }
    for (const auto& [begin, segment] : layout.segments()) {
      empty += segment.blocks.empty() ? segment.size : 0;
    }
    EXPECT_TRUE(layout.empty() == empty);
  }
}

} // namespace
