// Unit tests of hints: what should be evicted last or first, and what memory
// that is short of that does.

#include "fake_world.h"
#include "machine.h"

#include <ATen/cuda/detail/LMSCorePlan.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

using namespace at::cuda::lms;

namespace {

constexpr Hint kLast{Hint::Turn::kLast};
constexpr Hint kFirst{Hint::Turn::kFirst};

// Pages of 4 bytes that are used in turn, some of which do not fit.
class Turns {
 public:
  explicit Turns(size_t capacity = 3 * kPages) : machine(capacity) {
    for (size_t i = 0; i < kPages; ++i) {
      pages.push_back(machine.make(4));
    }
    // Later plans are alike: those after a change of hints.
    for (const Hint& hinted : {kLast, Hint{}}) {
      run(5);
      hint({pages.front()}, hinted);
    }
    run(5);
  }

  void hint(const std::set<Page*>& hinted, Hint hint) {
    for (Page* page : hinted) {
      machine.policy().note_hint(*page, hint);
    }
  }
  // Those that leave in the last of so many rounds.
  std::set<Page*> run(int rounds) {
    std::set<Page*> gone;
    for (int i = 0; i < rounds; ++i) {
      gone.clear();
      for (Page* used : pages) {
        machine.run(7, {used}, {});
        for (Page* page : pages) {
          if (!page->resident) {
            gone.insert(page);
          }
        }
      }
    }
    return gone;
  }
  std::set<Page*> others(const std::set<Page*>& some) const {
    std::set<Page*> rest(pages.begin(), pages.end());
    for (Page* page : some) {
      rest.erase(page);
    }
    return rest;
  }

  static constexpr size_t kPages = 20;
  Machine machine;
  std::vector<Page*> pages;
};

TEST(Hints, APlanEvictsWhatShouldStayAfterAllOthers) {
  for (size_t capacity = 3 * Turns::kPages - 4; capacity < 4 * Turns::kPages;
       ++capacity) {
    Turns turns(capacity);
    const auto gone = turns.run(1);
    EXPECT_TRUE(!gone.empty() && gone.size() < Turns::kPages / 2);
    turns.hint(gone, kLast);
    for (Page* page : turns.run(3)) {
      EXPECT_EQ(gone.count(page), 0u);
    }
  }
}

TEST(Hints, APlanEvictsWhatShouldGoBeforeAllOthers) {
  Turns turns;
  const auto stays = turns.others(turns.run(1));
  turns.hint(stays, kFirst);
  for (Page* page : turns.run(3)) {
    EXPECT_EQ(stays.count(page), 1u);
  }
}

TEST(Hints, AHintThatIsTakenBackIsForgotten) {
  Turns turns;
  const auto gone = turns.run(1);
  turns.hint(turns.others(gone), kFirst);
  EXPECT_TRUE(turns.run(3) != gone);
  turns.hint(turns.others(gone), {});
  EXPECT_TRUE(turns.run(3) == gone);
}

TEST(Hints, MemoryThatIsShortOfWhatShouldStayWins) {
  Turns turns;
  const auto before = turns.machine.moved();
  turns.run(1);
  const auto moved = turns.machine.moved() - before;
  turns.hint({turns.pages.begin(), turns.pages.end()}, kLast);
  turns.run(2);
  const auto hinted = turns.machine.moved();
  turns.run(1);
  EXPECT_TRUE(turns.machine.moved() - hinted == moved);
}

// Of pages of 4 bytes that are used in a random order, the same in each cycle.
Plan random_plan(unsigned seed, size_t hinted) {
  constexpr size_t kPages = 20;
  std::mt19937 random(seed);
  std::vector<Page> pages(kPages);
  for (size_t i = 0; i < kPages; ++i) {
    pages[i].id = i + 1;
    pages[i].bytes = 4;
    pages[i].hint = i < hinted ? kLast : Hint{};
  }
  std::vector<Page*> order;
  for (size_t i = 0; i < 3 * kPages; ++i) {
    order.push_back(&pages[i < kPages ? i : random() % kPages]);
  }
  std::shuffle(order.begin(), order.end(), random);
  History history;
  for (size_t i = 0; i < 4 * order.size(); ++i) {
    Operator op;
    op.name = i % order.size();
    op.uses = {{order[i % order.size()], /*writes=*/false}};
    history.append(op);
  }
  CycleReader reader(history);
  EXPECT_TRUE(reader.read(history, order.size()) && reader.is_done());
  return {reader.take(), 3 * kPages, /*copy_ns=*/0, /*makes_again=*/false};
}

size_t evicted(const Plan& plan, Hint::Turn turn) {
  size_t count = 0;
  for (uint32_t i = 0; i < plan.count(); ++i) {
    count += plan.at(i).is_evicted && plan.at(i).turn == turn ? 1 : 0;
  }
  return count;
}

TEST(Hints, HoldForAllVictimsOfAPlan) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    const Plan plan = random_plan(seed, /*hinted=*/5);
    EXPECT_EQ(evicted(plan, Hint::Turn::kLast), 0u);
    EXPECT_GT(evicted(plan, Hint::Turn::kByPlan), 0u);
  }
}

// Pages that are made anew are hinted anew.
TEST(Hints, TheSameHintsInEachCycleAreNoNews) {
  History history;
  std::vector<bool> news;
  for (uint64_t i = 0; i < 40; ++i) {
    Page page;
    page.id = i + 1;
    page.bytes = 4;
    Operator op;
    op.name = i % 4;
    op.uses = {{&page, /*writes=*/true}};
    history.append(op);
    page.hint = i % 4 == 0 && i < 36 ? kLast : Hint{};
    news.push_back(history.note_hint(page));
    history.on_death(&page, /*gain=*/0);
  }
  EXPECT_TRUE(std::all_of(news.begin(), news.begin() + 8, [](bool is_new) {
    return is_new; // there was no lag yet
  }));
  EXPECT_EQ(std::count(news.begin() + 16, news.end(), true), 1);
  EXPECT_TRUE(news[36]);
}

// The memory of two pages, the second of which was used last.
class TwoPages : public testing::Test {
 protected:
  TwoPages() {
    Segment segment;
    segment.size = 2 * kMinBlockSize;
    layout.add_segment(kMinBlockSize, segment);
    for (Page* page : {&first, &second}) {
      page->bytes = kMinBlockSize;
      page->resident = page->evictable = true;
      const uintptr_t address =
          page == &first ? kMinBlockSize : 2 * kMinBlockSize;
      layout.add_block(address, kMinBlockSize);
      layout.find(address).second->page = page;
      Operator op;
      op.uses = {{page, /*writes=*/false}};
      Actions actions;
      policy->on_operator(op, actions);
    }
  }

  std::vector<Page*> victims(const Page* ahead = nullptr) {
    Request request{kMinBlockSize, 0};
    request.ahead = ahead;
    return policy->choose_window(layout, request);
  }

  std::unique_ptr<Policy> policy = find_policy("planned")->make();
  Layout layout;
  Page first;
  Page second;
};

TEST_F(TwoPages, WithoutHintsTheLeastRecentlyUsedGoes) {
  EXPECT_EQ(victims(), std::vector<Page*>{&first});
}

TEST_F(TwoPages, WhatShouldStayStays) {
  policy->note_hint(first, kLast);
  EXPECT_EQ(victims(), std::vector<Page*>{&second});
  policy->note_hint(second, kLast);
  EXPECT_EQ(victims(), std::vector<Page*>{&first});
}

TEST_F(TwoPages, WhatShouldGoFirstGoes) {
  policy->note_hint(second, kFirst);
  EXPECT_EQ(victims(), std::vector<Page*>{&second});
}

TEST_F(TwoPages, NothingIsFetchedAheadIntoTheMemoryOfWhatShouldStay) {
  Page ahead;
  ahead.next_use = 5;
  first.next_use = second.next_use = 100;
  EXPECT_EQ(victims(&ahead).size(), 1u);
  policy->note_hint(first, kLast);
  EXPECT_EQ(victims(&ahead), std::vector<Page*>{&second});
  policy->note_hint(second, kLast);
  EXPECT_TRUE(victims(&ahead).empty());
}

// Each window of two pages has one in it that should stay.
TEST(Hints, PiecesAreTakenRatherThanWhatShouldStay) {
  const auto policy = find_policy("planned")->make();
  Layout layout;
  Segment segment;
  segment.size = 3 * kMinBlockSize;
  layout.add_segment(kMinBlockSize, segment);
  std::vector<Page> pages(3);
  for (size_t i = 0; i < pages.size(); ++i) {
    pages[i].bytes = kMinBlockSize;
    pages[i].resident = pages[i].evictable = true;
    pages[i].gain = i == 1 ? 0 : 1;
    layout.add_block((i + 1) * kMinBlockSize, kMinBlockSize);
    layout.find((i + 1) * kMinBlockSize).second->page = &pages[i];
  }
  pages[1].clean = true; // to evict it costs nothing
  Request request{2 * kMinBlockSize, 0};
  request.is_joined = true;
  const auto has_second = [&] {
    const auto victims = policy->choose_window(layout, request);
    EXPECT_EQ(victims.size(), 2u);
    return std::find(victims.begin(), victims.end(), &pages[1]) !=
        victims.end();
  };
  EXPECT_TRUE(has_second());
  policy->note_hint(pages[1], kLast);
  EXPECT_FALSE(has_second());
}

TEST(Hints, WhatLeavesAgainstAHintIsCounted) {
  FakeWorld world;
  world.start(/*pages=*/2);
  PageEntry* stays = world.make();
  PageEntry* goes = world.make();
  world.pager.books.policy->note_hint(*stays, kLast);
  PageEntry* third = world.make();
  EXPECT_FALSE(goes->resident);
  EXPECT_EQ(world.pager.books.stats.overruled, 0);
  world.evict_all(); // for no want of memory
  EXPECT_EQ(world.pager.books.stats.overruled, 0);
  world.use(stays);
  world.use(third);
  world.pager.books.policy->note_hint(*third, kLast);
  world.use(goes);
  EXPECT_EQ(world.pager.books.stats.overruled, 1);
  for (PageEntry* page : {stays, goes, third}) {
    world.end(page);
  }
}

} // namespace
