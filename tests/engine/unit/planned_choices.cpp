// Unit tests of the planned policy: what it chooses to evict and to fetch
// first.

#include "machine.h"

#include <algorithm>
#include <vector>

using namespace at::cuda::lms;

namespace {

bool contains(const std::vector<Page*>& pages, const Page* page) {
  return std::find(pages.begin(), pages.end(), page) != pages.end();
}

// A machine that follows a plan: layers of 4 bytes are used in turn.
struct Turns {
  Machine machine;
  std::vector<Page*> layers;
  size_t next = 0;

  explicit Turns(size_t count) : machine(3 * count) {
    for (size_t i = 0; i < count; ++i) {
      layers.push_back(machine.make(4));
    }
    for (size_t i = 0; i < 5 * count; ++i) {
      run();
    }
  }
  void run() {
    machine.run(7, {layers[next]}, {});
    next = (next + 1) % layers.size();
  }
  // What the policy wants after the next use; nothing is done.
  Actions ask() {
    Page* page = layers[next];
    next = (next + 1) % layers.size();
    page->resident = page->evictable = true;
    return ask(page);
  }
  Actions ask(Page* page) {
    Operator op;
    op.name = 7;
    op.uses = {{page, false}};
    Actions actions;
    machine.policy().on_operator(op, actions);
    return actions;
  }
  // Goes on until a page is wanted that is not needed within `distance`.
  Page* ask_until(uint64_t distance) {
    for (size_t i = 0; i < layers.size(); ++i) {
      const Actions wanted = ask();
      const uint64_t now = history(1)->last_use;
      if (!wanted.fetch.empty() &&
          wanted.fetch.back()->next_use > now + distance) {
        return wanted.fetch.back();
      }
    }
    EXPECT_TRUE(!"found");
    return layers.front();
  }
  // Used so many operators ago, or needed.
  Page* history(size_t ago) {
    return layers[(next + layers.size() - ago) % layers.size()];
  }
  Page* future(size_t distance) {
    return layers[(next + distance - 1) % layers.size()];
  }
  // It has to be evicted against the plan.
  void drive_out(Page* page) {
    EXPECT_TRUE(page->resident);
    EXPECT_TRUE((window(page, nullptr) == std::vector<Page*>{page}));
    page->resident = page->evictable = false;
  }
  // What is chosen where there is nothing but the page's memory.
  std::vector<Page*> window(Page* only, const Page* ahead) {
    Layout layout;
    Segment segment;
    segment.size = kMinBlockSize;
    layout.add_segment(kMinBlockSize, segment);
    layout.add_block(kMinBlockSize, kMinBlockSize);
    layout.find(kMinBlockSize).second->page = only;
    Request request{kMinBlockSize, 0};
    request.ahead = ahead;
    return machine.policy().choose_window(layout, request);
  }
};

TEST(PlannedChoices, AFetchEvictsOnlyWhatComesBackMuchLater) {
  Turns turns(20);
  const auto away = std::partition(
      turns.layers.begin(), turns.layers.end(), [](const Page* page) {
        return page->resident;
      });
  EXPECT_TRUE(away != turns.layers.begin() && away != turns.layers.end());
  for (auto stays = turns.layers.begin(); stays != away; ++stays) {
    EXPECT_TRUE((*stays)->next_use != Page::kNever);
    for (auto comes = away; comes != turns.layers.end(); ++comes) {
      const bool is_later = (*stays)->next_use > (*comes)->next_use + 20 / 4;
      EXPECT_TRUE(turns.window(*stays, *comes).empty() == !is_later);
    }
    EXPECT_TRUE((turns.window(*stays, nullptr) == std::vector<Page*>{*stays}));
  }
}

TEST(PlannedChoices, WhatIsEvictedIsNotAskedForAgainAtOnce) {
  Turns turns(400);
  Page* page = turns.ask_until(100); // no stray would be asked for as early
  page->resident = page->evictable = true;
  turns.drive_out(page);
  EXPECT_TRUE(!contains(turns.ask().fetch, page));
}

TEST(PlannedChoices, WhatHasBeenUsedIsNotAskedForAnyMore) {
  Turns turns(20);
  Page* first = turns.ask_until(4);
  Page* second = turns.history(2); // needed after all others
  turns.drive_out(second);
  EXPECT_TRUE((turns.ask().fetch == std::vector<Page*>{first, second}));
  // Earlier than was foreseen.
  EXPECT_TRUE((turns.ask(second).fetch == std::vector<Page*>{first}));
}

TEST(PlannedChoices, WhatStrayedComesBeforeWhatIsNeededMuchLater) {
  constexpr size_t kFar = 200; // operators
  size_t place = 0;
  {
    Turns turns(400);
    turns.ask_until(kFar);
    place = turns.next;
  }
  Turns turns(400);
  while (turns.next + 1 != place) {
    turns.run();
  }
  // One is needed long after everything that comes at short notice.
  Page* stray = turns.future(kFar / 2);
  turns.drive_out(stray);
  const auto wanted = turns.ask().fetch;
  EXPECT_TRUE(wanted.size() == 2 && wanted.front() == stray);
}

TEST(PlannedChoices, WhatADroppedPageIsMadeFromComesBeforeThat) {
  Turns turns(400);
  size_t far = 399; // operators
  while (turns.future(far)->resident) {
    --far;
  }
  EXPECT_TRUE(far > 200);
  Page* source = turns.future(far);
  EXPECT_TRUE(!contains(turns.ask().fetch, source));
  const uint64_t now = turns.history(1)->last_use;
  turns.machine.policy().note_source(*source, now + 20);
  EXPECT_TRUE(contains(turns.ask().fetch, source));
  // It does not go for what is needed later.
  source->resident = source->evictable = true;
  EXPECT_TRUE(turns.window(source, turns.future(100)).empty());
  source->resident = source->evictable = false;
  turns.machine.policy().note_source(*source, Page::kNever);
  EXPECT_TRUE(!contains(turns.ask().fetch, source));
}

TEST(PlannedChoices, WhatIsStillArrivingIsNoSoonerFree) {
  constexpr size_t kBytes = 4 * kMinBlockSize;
  Page draining; // free when all that was sent is written back
  draining.draining = true;
  draining.bytes = draining.drained_at = kBytes;
  Page clean;
  clean.id = 1;
  clean.bytes = kBytes;
  clean.clean = true;
  Layout layout;
  Segment segment;
  segment.size = 2 * kBytes;
  layout.add_segment(kBytes, segment);
  for (Page* page : {&draining, &clean}) {
    const uintptr_t address = page == &draining ? kBytes : 2 * kBytes;
    page->resident = page->evictable = true;
    layout.add_block(address, kBytes);
    layout.find(address).second->page = page;
  }
  const auto policy = make_planned_policy();
  Request request{kBytes, 0};
  request.sent = kBytes;
  request.arrived = clean.arrives_at = 1;
  EXPECT_TRUE(
      policy->choose_window(layout, request) == std::vector<Page*>{&clean});
  request.arrived = 0;
  EXPECT_TRUE(
      policy->choose_window(layout, request) == std::vector<Page*>{&draining});
}

TEST(PlannedChoices, PiecesAreDroppedInPlaceOfAWindowThatIsCopied) {
  // Pages that can be made again, each between two that have to be copied.
  constexpr size_t kBytes = 64 * kMinBlockSize;
  std::vector<Page> pages(6);
  Layout layout;
  Segment segment;
  segment.size = pages.size() * kBytes;
  layout.add_segment(kBytes, segment);
  for (size_t i = 0; i < pages.size(); ++i) {
    pages[i].id = i + 1;
    pages[i].bytes = kBytes;
    pages[i].resident = pages[i].evictable = true;
    pages[i].gain = i % 2 == 0 ? 30 : 0;
    const uintptr_t address = (i + 1) * kBytes;
    layout.add_block(address, kBytes);
    layout.find(address).second->page = &pages[i];
  }
  const auto policy = make_planned_policy();
  Request request{2 * kBytes, 0};
  const auto window = policy->choose_window(layout, request);
  EXPECT_TRUE(window.size() == 2 && contains(window, &pages[1]));
  request.is_joined = true;
  const std::vector<Page*> pieces{&pages[0], &pages[2]};
  EXPECT_TRUE(policy->choose_window(layout, request) == pieces);
  // One of them is room enough where it lies.
  request.bytes = kBytes;
  EXPECT_TRUE(
      policy->choose_window(layout, request) == std::vector<Page*>{&pages[0]});
  // To make them again takes nearly as long as a copy.
  request.bytes = 2 * kBytes;
  for (Page& page : pages) {
    page.gain = page.gain > 0 ? 1 : 0;
    page.clean = page.gain == 0;
  }
  EXPECT_TRUE(policy->choose_window(layout, request) != pieces);
}

TEST(PlannedChoices, WhatDiesLeavesBeforeWhatComesBack) {
  // A page dies sooner than another is used again. But who evicts that one
  // has to copy it twice.
  Machine machine(1'000);
  Page* lasting = machine.make(400);
  Moved moved;
  for (int i = 0; i < 6; ++i) {
    const Moved before = machine.moved();
    machine.run(1, {}, {lasting});
    Page* dying = machine.make(400);
    machine.run(2, {}, {dying});
    for (uint64_t name = 3; name < 13; ++name) {
      Page* between = machine.make(400);
      machine.run(name, {}, {between});
      machine.destroy(between);
    }
    machine.destroy(dying);
    moved = machine.moved() - before;
  }
  EXPECT_TRUE(moved.in == 0 && moved.out == 400);
}

// The bytes that are paged in of `count` pages of two bytes, used in turn with
// large ones, in one round that follows a plan.
size_t tiny_traffic(int count) {
  constexpr size_t kLarge = 32'768;
  Machine machine(8 * kLarge);
  std::vector<Page*> large;
  std::vector<Page*> tiny;
  for (int i = 0; i < 16; ++i) {
    large.push_back(machine.make(kLarge));
  }
  for (int i = 0; i < count; ++i) {
    tiny.push_back(machine.make(2));
  }
  Moved moved;
  for (int round = 0; round < 4; ++round) {
    const Moved before = machine.moved();
    for (Page* page : large) {
      machine.run(9, {page}, {});
    }
    machine.run(10, tiny, {});
    moved = machine.moved() - before;
  }
  EXPECT_TRUE(moved.in >= kLarge);
  return moved.in % kLarge;
}

TEST(PlannedChoices, TinyPagesStayUnlessThereAreMany) {
  EXPECT_TRUE(tiny_traffic(100) == 0);
  EXPECT_TRUE(tiny_traffic(3'000) > 0);
}

} // namespace
