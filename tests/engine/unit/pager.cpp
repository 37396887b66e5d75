// Unit tests of the pager: the steps of pages, and who waits for what.

#include "fake_world.h"

#include <gtest/gtest.h>

#include <future>
#include <stdexcept>
#include <string>

using namespace at::cuda::lms;

namespace {

using State = PageEntry::State;

class ThePager : public testing::Test {
 protected:
  ThePager() {
    world.start(/*pages=*/4);
  }
  ~ThePager() override {
    EXPECT_EQ(world.pager.books.map.layout().allocated(), alive_bytes());
  }

  // What the map should have: nothing is lost, nothing is freed twice.
  size_t alive_bytes() const {
    size_t bytes = 0;
    for (const PageEntry* page : world.pager.books.pages.all()) {
      bytes += page->memory ? page->block->size : 0;
    }
    for (const Draining& draining : world.pager.books.draining.all()) {
      bytes += draining.bytes;
    }
    return bytes;
  }
  // Ends it with the test.
  PageEntry* make() {
    pages.emplace_back(world.make(), Ender{&world});
    return pages.back().get();
  }

  // Memory is full but for two holes, with this page between.
  PageEntry* make_between_holes() {
    PageEntry* first = world.make();
    PageEntry* second = make();
    PageEntry* third = world.make();
    (void)make();
    world.end(first);
    world.end(third);
    return second;
  }

  struct Ender {
    FakeWorld* world;
    void operator()(PageEntry* page) const {
      world->end(page);
    }
  };

  mutable FakeWorld world;
  std::vector<std::unique_ptr<PageEntry, Ender>> pages;
};

TEST_F(ThePager, a_page_goes_and_comes_back) {
  PageEntry* page = make();
  EXPECT_EQ(world.evict_all(), 1u);
  EXPECT_EQ(page->state, State::kPagedOut);
  EXPECT_FALSE(page->memory);
  EXPECT_FALSE(page->resident);
  world.use(page);
  EXPECT_EQ(page->state, State::kResident);
  EXPECT_TRUE(page->memory);
  ASSERT_EQ(world.copies.size(), 2u);
  ASSERT_EQ(world.waits.size(), 1u);
  EXPECT_EQ(world.waits[0].second, world.copies[1].end);
}

TEST_F(ThePager, the_hosts_copy_of_a_page_may_go_to_another_device) {
  PageEntry* page = make();
  const auto take = [&](Event& ready) {
    const Lock lock(world.pager.books.mutex);
    return world.pager.residence.take_copy(page, ready);
  };
  Event ready;
  EXPECT_TRUE(take(ready).empty()); // it is on the device
  EXPECT_EQ(world.evict_all(), 1u);
  world.pin(page);
  EXPECT_TRUE(take(ready).empty());
  world.unpin(page);
  HostPieces taken = take(ready);
  EXPECT_FALSE(taken.empty());
  EXPECT_EQ(ready, world.copies.front().end);
  EXPECT_THROW(world.use(page), std::runtime_error); // no other bytes instead
  const Lock lock(world.pager.books.mutex);
  world.free_on_host(std::move(taken), nullptr);
}

TEST_F(ThePager, a_page_may_begin_on_the_host) {
  pages.emplace_back(world.make_on_host(), Ender{&world});
  PageEntry* page = pages.back().get();
  const auto& stats = world.pager.books.stats;
  EXPECT_EQ(page->state, State::kPagedOut);
  EXPECT_FALSE(page->resident);
  EXPECT_EQ(stats.managed[kAll].current, 1);
  EXPECT_EQ(stats.paged_out_bytes.current, FakeWorld::kPage);
  EXPECT_EQ(world.evict_all(), 0u);
  world.use(page);
  EXPECT_TRUE(page->memory);
  EXPECT_TRUE(page->clean);
  EXPECT_EQ(stats.paged_out_bytes.current, 0);
  ASSERT_EQ(world.waits.size(), 1u);
  EXPECT_EQ(world.waits[0].second, world.copies[0].end);
  EXPECT_EQ(world.evict_all(), 1u);
  EXPECT_EQ(world.count(Copy::Kind::kIn), 1u);
  EXPECT_EQ(world.count(Copy::Kind::kOut), 0u);
}

TEST_F(ThePager, a_page_that_began_on_the_host_may_die_there) {
  world.host_pages = 1;
  PageEntry* page = world.make_on_host();
  EXPECT_FALSE(world.make_on_host()) << "there is no more memory";
  world.end(page);
  EXPECT_EQ(world.host_pages, 1u);
  EXPECT_EQ(world.freed_on_host, Events{nullptr}); // nobody reads it
  EXPECT_EQ(world.pager.books.stats.paged_out_bytes.current, 0);
}

TEST_F(ThePager, a_copy_back_waits_for_the_copy_out) {
  PageEntry* page = make();
  world.evict_all();
  Events pending;
  const DeviceMemory memory = world.allocate(*page, true, pending);
  world.use(page); // in other memory
  EXPECT_EQ(world.copies[1].after, Events{world.copies[0].end});
}

TEST_F(ThePager, a_stream_waits_once) {
  PageEntry* page = make();
  world.evict_all();
  world.use(page);
  world.use(page);
  EXPECT_EQ(world.waits.size(), 1u);
}

TEST_F(ThePager, a_clean_page_goes_without_a_copy) {
  PageEntry* page = make();
  world.evict_all();
  world.use(page);
  EXPECT_TRUE(page->clean);
  EXPECT_EQ(world.evict_all(), 1u);
  EXPECT_EQ(world.count(Copy::Kind::kOut), 1u);
  EXPECT_EQ(world.pager.books.stats.dropped, 1);
}

TEST_F(ThePager, a_write_makes_dirty) {
  PageEntry* page = make();
  world.evict_all();
  world.use(page, /*writes=*/true);
  EXPECT_FALSE(page->clean);
  ASSERT_EQ(world.freed_on_host.size(), 1u);
  EXPECT_EQ(world.freed_on_host[0], page->arrival); // it is read until then
  world.evict_all();
  EXPECT_EQ(world.count(Copy::Kind::kOut), 2u);
}

TEST_F(ThePager, a_saved_page_goes_without_a_copy) {
  PageEntry* page = make();
  ASSERT_TRUE(world.save(page));
  EXPECT_TRUE(page->clean);
  EXPECT_TRUE(page->resident);
  world.use(page);
  EXPECT_EQ(world.evict_all(), 1u);
  ASSERT_EQ(world.count(Copy::Kind::kOut), 1u);
  // Its memory is read until the copy has ended.
  Events pending;
  const DeviceMemory memory = world.allocate(*page, true, pending);
  EXPECT_EQ(pending, Events{world.copies[0].end});
  world.use(page);
  EXPECT_EQ(world.copies[1].after, Events{world.copies[0].end});
}

TEST_F(ThePager, a_write_waits_for_the_copy_of_a_saved_page) {
  PageEntry* page = make();
  world.save(page);
  const Event end = world.copies[0].end;
  world.use(page);
  EXPECT_TRUE(world.waits.empty()); // who only reads does not
  world.use(page, /*writes=*/true);
  ASSERT_EQ(world.waits.size(), 1u);
  EXPECT_EQ(world.waits[0].second, end);
  EXPECT_EQ(world.freed_on_host, Events{end});
  EXPECT_FALSE(page->clean);
  world.use(page, /*writes=*/true);
  EXPECT_EQ(world.waits.size(), 1u);
}

TEST_F(ThePager, memory_of_a_saved_page_that_dies_is_waited_for) {
  PageEntry* page = world.make();
  PageEntry* other = make();
  world.save(page);
  world.end(page);
  EXPECT_EQ(world.freed_on_host, Events{world.copies[0].end});
  Events pending;
  const DeviceMemory memory = world.allocate(*other, true, pending);
  EXPECT_EQ(pending, Events{world.copies[0].end});
}

TEST_F(ThePager, a_saved_page_moves_after_its_copy) {
  PageEntry* page = make();
  world.save(page);
  Events pending;
  DeviceMemory memory = world.allocate(*page, true, pending);
  {
    Freed freed(world.pager.books.contention);
    const Lock lock(world.pager.books.mutex);
    world.pager.residence.move(page, memory, {}, freed);
  }
  const auto& after = world.copies[1].after;
  EXPECT_EQ(std::count(after.begin(), after.end(), world.copies[0].end), 1);
}

TEST_F(ThePager, a_page_that_cannot_be_saved_stays_as_it_is) {
  PageEntry* page = make();
  world.copies_fail = true;
  EXPECT_FALSE(world.save(page));
  EXPECT_FALSE(page->clean);
  world.copies_fail = false;
  world.host_pages = 0;
  EXPECT_FALSE(world.save(page));
  EXPECT_FALSE(page->clean);
}

TEST_F(ThePager, what_is_pinned_stays) {
  PageEntry* page = make();
  world.pin(page);
  EXPECT_EQ(world.evict_all(), 0u);
  world.unpin(page);
  EXPECT_EQ(world.evict_all(), 1u);
}

TEST_F(ThePager, the_next_owner_of_memory_waits_for_the_copy) {
  PageEntry* page = make();
  world.evict_all();
  Events pending;
  const DeviceMemory memory = world.allocate(*page, true, pending);
  ASSERT_EQ(pending.size(), 1u);
  EXPECT_EQ(pending[0], world.copies[0].end);
  Events nothing;
  const DeviceMemory other = world.allocate(*page, true, nothing);
  EXPECT_TRUE(nothing.empty());
}

TEST_F(ThePager, the_world_is_told_how_a_page_leaves) {
  using Departures = decltype(world.departures);
  PageEntry* page = make();
  Request wanted;
  wanted.bytes = 512;
  const auto reclaim = [&](const Request& request) {
    world.pager.reclaimer.reclaim(request, Scope::kAll, /*may_wait=*/true);
  };
  reclaim(wanted);
  EXPECT_EQ(world.departures, (Departures{{Departure::kCopied, 512}}));
  world.use(page);
  EXPECT_FALSE(world.copies.back().is_ahead);
  reclaim({}); // nobody wants room
  EXPECT_EQ(world.departures.back(), std::pair(Departure::kClean, size_t{0}));
  world.use(page, /*writes=*/true);
  EXPECT_TRUE(world.save(page));
  EXPECT_EQ(world.departures.size(), 2u); // it stays
}

TEST_F(ThePager, nobody_waits_for_a_copy_that_has_ended) {
  PageEntry* page = make();
  EXPECT_TRUE(world.page_out(page));
  world.catch_up();
  EXPECT_EQ(world.evict_all(), 1u); // what drains
  Events pending;
  const DeviceMemory memory = world.allocate(*page, true, pending);
  EXPECT_TRUE(pending.empty());
}

TEST_F(ThePager, unused_memory_goes_back_with_what_was_pending) {
  PageEntry* page = make();
  world.evict_all();
  Events pending;
  DeviceMemory memory = world.allocate(*page, true, pending);
  world.pager.books.return_pending(memory.get(), pending);
  memory.reset();
  Events again;
  memory = world.allocate(*page, true, again);
  EXPECT_EQ(again, pending);
}

TEST_F(ThePager, memory_of_a_failed_arrival_goes_back_with_what_was_pending) {
  PageEntry* page = make();
  world.evict_all();
  world.copies_fail = true;
  EXPECT_THROW(world.use(page), std::runtime_error);
  world.copies_fail = false;
  Events pending;
  const DeviceMemory memory = world.allocate(*page, true, pending);
  EXPECT_EQ(pending, Events{world.copies[0].end});
}

TEST_F(ThePager, a_failed_copy_leaves_the_page_where_it_is) {
  PageEntry* page = make();
  const size_t host = world.host_pages;
  world.copies_fail = true;
  EXPECT_EQ(world.evict_all(), 0u);
  EXPECT_EQ(page->state, State::kResident);
  EXPECT_TRUE(page->evictable);
  EXPECT_EQ(world.host_pages, host);
  EXPECT_EQ(world.pager.residence.last_failure(), "the copy failed");
  world.copies_fail = false;
  world.evict_all();
  world.copies_fail = true;
  EXPECT_THROW(world.use(page), std::runtime_error);
  EXPECT_EQ(page->state, State::kPagedOut);
  world.copies_fail = false;
  world.use(page);
  EXPECT_EQ(page->state, State::kResident);
}

TEST_F(ThePager, a_page_may_die_while_it_arrives) {
  PageEntry* page = world.make();
  world.evict_all();
  world.meanwhile = [&] { world.end(page); };
  const size_t host = world.host_pages;
  world.use(page); // the last pin frees it
  EXPECT_TRUE(world.pager.books.pages.all().empty());
  EXPECT_EQ(world.host_pages, host + 1);
  EXPECT_EQ(world.pager.books.map.layout().allocated(), 0u);
  EXPECT_EQ(world.pager.books.stats.paged_out_bytes.current, 0);
}

TEST_F(ThePager, a_page_may_die_while_it_fails_to_arrive) {
  PageEntry* page = world.make();
  world.evict_all();
  world.meanwhile = [&] {
    world.end(page);
    world.copies_fail = true;
  };
  EXPECT_THROW(world.use(page), std::runtime_error);
  EXPECT_EQ(world.host_pages, 1000u);
  EXPECT_EQ(world.pager.books.stats.paged_out_bytes.current, 0);
}

TEST_F(ThePager, memory_of_a_dead_page_is_waited_for_while_it_arrives) {
  PageEntry* page = world.make();
  world.evict_all();
  world.pin(page);
  world.pager.fetcher.fetch(page); // for no stream
  world.unpin(page);
  world.end(page);
  PageEntry next(/*home=*/nullptr);
  next.bytes = FakeWorld::kPage;
  Events pending;
  const DeviceMemory memory = world.allocate(next, true, pending);
  ASSERT_EQ(pending.size(), 1u);
  EXPECT_EQ(pending[0], world.copies.back().end);
}

TEST_F(ThePager, copies_that_only_save_a_copy_go_when_host_memory_is_spent) {
  PageEntry* clean = make();
  world.evict_all();
  world.use(clean);
  PageEntry* other = make();
  world.host_pages = 0;
  world.pin(clean);
  EXPECT_EQ(world.evict_all(), 1u); // into the memory of the clean page's copy
  EXPECT_EQ(other->state, State::kPagedOut);
  EXPECT_FALSE(clean->clean);
  world.unpin(clean);
  EXPECT_EQ(world.evict_all(), 0u);
  EXPECT_EQ(
      world.pager.residence.last_failure(),
      "host memory for paged-out storages is spent");
  world.host_pages = 1;
}

TEST_F(ThePager, room_is_made_by_moving_aside) {
  PageEntry* second = make_between_holes();
  Request request;
  request.bytes = 2 * FakeWorld::kPage;
  world.pager.relocator.make_gap(request); // nothing was evicted so far
  EXPECT_EQ(world.count(Copy::Kind::kMove), 0u);
  world.pager.books.note_shortage();
  const void* before = second->memory.get();
  world.pager.relocator.make_gap(request);
  EXPECT_EQ(world.count(Copy::Kind::kMove), 1u);
  EXPECT_EQ(world.count(Copy::Kind::kOut), 0u);
  const Layout& layout = world.pager.books.map.layout();
  EXPECT_TRUE(layout.has_gap(request.bytes, 0));
  EXPECT_TRUE(second->memory.get() != before);
  EXPECT_EQ(second->state, State::kResident);
  EXPECT_EQ(second->pins, 0u);
}

TEST_F(ThePager, a_page_that_cannot_move_stays) {
  PageEntry* second = make_between_holes();
  world.pager.books.note_shortage();
  world.copies_fail = true;
  const void* before = second->memory.get();
  Request request;
  request.bytes = 2 * FakeWorld::kPage;
  world.pager.relocator.make_gap(request);
  EXPECT_EQ(second->memory.get(), before);
  EXPECT_EQ(second->state, State::kResident);
  EXPECT_TRUE(second->evictable);
  world.copies_fail = false;
}

TEST_F(ThePager, fetching_ahead_stops_where_there_is_no_room) {
  PageEntry* page = make();
  world.evict_all();
  for (int i = 0; i < 4; ++i) {
    world.pin(make());
  }
  world.pin_as_pager(page);
  world.pager.fetcher.fetch_ahead({page});
  EXPECT_EQ(page->state, State::kPagedOut);
  EXPECT_EQ(page->pins, 0u);
  world.unpin(pages.back().get());
  world.end(pages.back().release());
  pages.pop_back();
  world.pin_as_pager(page);
  world.pager.fetcher.fetch_ahead({page});
  EXPECT_EQ(page->state, State::kResident);
  EXPECT_EQ(page->waits_for, Activity::kWaitForAhead);
  for (const auto& other : pages) {
    if (other->pins > 0) {
      world.unpin(other.get());
    }
  }
}

TEST_F(ThePager, copies_for_later_uses_are_not_urgent) {
  PageEntry* page = make();
  const auto is_urgent = [&](bool is_ahead) {
    world.evict_all();
    if (is_ahead) {
      world.pin_as_pager(page);
      world.pager.fetcher.fetch_ahead({page});
    } else {
      world.use(page);
    }
    return world.copies.back().is_urgent;
  };
  EXPECT_TRUE(is_urgent(/*is_ahead=*/false));
  EXPECT_FALSE(is_urgent(/*is_ahead=*/true));
  page->was_stray = true; // it left against the plan and is needed soon
  EXPECT_TRUE(is_urgent(/*is_ahead=*/true));
}

TEST_F(ThePager, urgent_copies_are_in_no_order_with_others) {
  PageEntry* first = make();
  PageEntry* second = make();
  EXPECT_TRUE(world.page_out(first));
  EXPECT_TRUE(world.page_out(second));
  world.pin_as_pager(second);
  world.pager.fetcher.fetch_ahead({second});
  world.use(first); // though a copy waits for the later copy out
  ASSERT_EQ(world.copies.size(), 4u);
  EXPECT_EQ(world.copies[2].after, Events{world.copies[1].end});
  EXPECT_EQ(world.copies[3].after, Events{world.copies[0].end});
}

// A page that knows whether its address can be seen.
struct Visible final : PageEntry {
  Visible() : PageEntry(/*home=*/nullptr) {}
  void show_address() override {
    is_visible = true;
  }
  void hide_address() override {
    is_visible = false;
  }
  bool is_visible = false;
};

TEST_F(ThePager, an_address_is_seen_while_an_operator_needs_it) {
  auto* page = world.adopt(std::make_unique<Visible>());
  EXPECT_FALSE(page->is_visible);
  world.pin(page);
  EXPECT_TRUE(page->is_visible);
  world.pin(page);
  world.unpin(page);
  EXPECT_TRUE(page->is_visible);
  world.unpin(page);
  EXPECT_FALSE(page->is_visible);
  world.evict_all();
  world.pin(page);
  EXPECT_FALSE(page->is_visible);
  world.pager.fetcher.fetch(page);
  EXPECT_TRUE(page->is_visible);
  world.unpin(page);
  world.end(page);
}

TEST_F(ThePager, what_the_pager_does_shows_no_address) {
  auto* page = world.adopt(std::make_unique<Visible>());
  world.evict_all();
  world.pin_as_pager(page);
  world.pin_as_pager(page);
  world.pager.fetcher.fetch_ahead({page}); // one of the pins is left
  EXPECT_EQ(page->state, State::kResident);
  EXPECT_FALSE(page->is_visible);
  world.pin(page); // an operator comes
  EXPECT_TRUE(page->is_visible);
  world.unpin(page);
  EXPECT_FALSE(page->is_visible);
  world.unpin_as_pager(page);
  world.end(page);
}

TEST_F(ThePager, memory_that_drains_is_not_free_before_its_copy) {
  auto odd = std::make_unique<PageEntry>(/*home=*/nullptr);
  odd->bytes = FakeWorld::kPage - 100; // its block is larger
  PageEntry* page = world.adopt(std::move(odd));
  EXPECT_TRUE(world.page_out(page));
  {
    const Lock lock(world.pager.books.mutex);
    Request request;
    world.pager.books.draining.tell(world.pager.books.progress, request);
    EXPECT_EQ(request.drained, 0u);
    EXPECT_EQ(request.sent, page->bytes);
  }
  world.end(page);
}

TEST_F(ThePager, memory_of_expandable_segments_is_waited_for_at_once) {
  PageEntry* page = make();
  world.pager.books.map.layout()
      .find(reinterpret_cast<uintptr_t>(page->memory.get()))
      .first->is_expandable = true;
  world.evict_all();
  ASSERT_EQ(world.waits.size(), 1u);
  EXPECT_EQ(world.waits[0].second, world.copies[0].end);
  world.use(page, /*writes=*/true);
  world.waits_fail = true;
  EXPECT_EQ(world.evict_all(), 1u); // the host waits instead
  EXPECT_EQ(world.host_waits, 1u);
  world.waits_fail = false;
}

// --- threads ---

TEST_F(ThePager, two_threads_that_wait_for_each_other_do_not_hope) {
  PageEntry* wanted = make();
  PageEntry* in_the_way = make();
  world.evict_all();
  world.use(in_the_way);
  Contention& contention = world.pager.books.contention;
  std::future<void> other;
  world.meanwhile = [&] { // there is no room, and the other holds some
    std::promise<void> is_pinned;
    other = std::async(std::launch::async, [&] {
      world.pin(in_the_way);
      is_pinned.set_value();
      world.use(wanted); // waits until it has arrived, or not
      world.unpin(in_the_way);
    });
    is_pinned.get_future().wait();
    Contention::GiveUp give_up;
    EXPECT_FALSE(
        contention.wait_for_others(contention.generation(), give_up, [] {}));
    EXPECT_LT(std::chrono::steady_clock::now(), *give_up);
  };
  world.use(wanted);
  other.get();
}

TEST_F(ThePager, a_thread_waits_for_the_pins_of_another) {
  PageEntry* page = make();
  Contention& contention = world.pager.books.contention;
  EXPECT_FALSE(contention.others_hold_pins());
  world.pin(page);
  EXPECT_FALSE(contention.others_hold_pins()); // they are this thread's
  std::promise<void> is_waiting;
  auto other = std::async(std::launch::async, [&] {
    EXPECT_TRUE(contention.others_hold_pins());
    const uint64_t seen = contention.generation();
    Contention::GiveUp give_up;
    bool is_first = true;
    return contention.wait_for_others(seen, give_up, [&] {
      if (std::exchange(is_first, false)) {
        is_waiting.set_value();
      }
    });
  });
  is_waiting.get_future().wait();
  world.unpin(page);
  EXPECT_TRUE(other.get());
}

TEST_F(ThePager, nobody_waits_for_nobody) {
  Contention& contention = world.pager.books.contention;
  Contention::GiveUp give_up;
  EXPECT_FALSE(
      contention.wait_for_others(contention.generation(), give_up, [] {}));
}

TEST_F(ThePager, another_thread_waits_for_a_page_that_arrives) {
  PageEntry* page = make();
  world.evict_all();
  std::future<void> other;
  world.meanwhile = [&] {
    EXPECT_EQ(page->state, State::kArriving);
    other = std::async(std::launch::async, [&] { world.use(page); });
  };
  world.use(page);
  other.get();
  EXPECT_EQ(world.count(Copy::Kind::kIn), 1u);
}

TEST(Locks, no_thread_takes_two) {
  std::mutex one;
  std::mutex two;
  const Lock lock(one);
  EXPECT_THROW(Lock other(two), std::logic_error);
}

// --- what is made again ---

class TheChaoticPager : public testing::Test {
 protected:
  TheChaoticPager() {
    world.start(/*pages=*/2);
    world.can_be_made = true;
    page = world.make();
  }
  ~TheChaoticPager() override {
    world.end(page);
    EXPECT_EQ(world.pager.books.map.layout().allocated(), 0);
  }

  FakeWorld world{"chaos"};
  PageEntry* page;
};

TEST_F(TheChaoticPager, DropsInTurnWithCopies) {
  EXPECT_EQ(world.evict_all(), 1);
  EXPECT_EQ(page->state, State::kDropped);
  EXPECT_TRUE(page->dropped);
  EXPECT_FALSE(page->resident);
  EXPECT_TRUE(page->host.empty());
  EXPECT_TRUE(world.make_again(page));
  EXPECT_EQ(page->state, State::kResident);
  world.use(page);
  EXPECT_EQ(world.evict_all(), 1);
  EXPECT_EQ(page->state, State::kPagedOut);
  EXPECT_FALSE(page->host.empty());
  EXPECT_EQ(world.given_up, 1);
}

TEST_F(TheChaoticPager, LeavesWhatWasDroppedToTheWorld) {
  world.evict_all();
  world.pin(page);
  EXPECT_FALSE(world.pager.fetcher.fetch(page));
  EXPECT_EQ(world.count(Copy::Kind::kIn), 0);
  EXPECT_TRUE(world.make_again(page));
  EXPECT_TRUE(world.pager.fetcher.fetch(page));
  EXPECT_FALSE(world.make_again(page)); // it is there
  world.unpin(page);
}

TEST_F(TheChaoticPager, KeepsAPageDroppedThatCouldNotBeMade) {
  world.evict_all();
  EXPECT_TRUE(world.pager.fetcher.begin_making(page));
  {
    const Lock lock(world.pager.books.mutex);
    world.pager.residence.stay_dropped(page);
  }
  world.pager.fetcher.end_making();
  EXPECT_EQ(page->state, State::kDropped);
  EXPECT_TRUE(world.make_again(page));
}

TEST_F(TheChaoticPager, CopiesWhatCannotBeMade) {
  world.can_be_made = false;
  world.evict_all();
  EXPECT_EQ(page->state, State::kPagedOut);
}

TEST_F(TheChaoticPager, ForgetsWhatDiesWhileItIsDropped) {
  PageEntry* other = world.make();
  world.evict_all();
  EXPECT_EQ(other->state, State::kDropped);
  world.end(other);
  EXPECT_TRUE(world.make_again(page));
}

// --- traits ---

TEST(Traits, original_has_the_host_wait_for_each_copy) {
  FakeWorld world("original");
  world.start(2);
  PageEntry* page = world.make();
  world.evict_all();
  EXPECT_EQ(world.host_waits, 1u);
  world.use(page);
  EXPECT_EQ(world.host_waits, 2u);
  EXPECT_FALSE(page->clean);
  world.end(page);
}

TEST(Traits, chaos_overwrites_what_it_evicts) {
  FakeWorld world("chaos");
  world.start(2);
  PageEntry* page = world.make();
  world.evict_all();
  EXPECT_FALSE(world.copies.back().only_overwrites);
  world.use(page);
  world.evict_all();
  EXPECT_TRUE(world.copies.back().only_overwrites);
  EXPECT_EQ(world.pager.books.stats.paged_out.copies, 1);
  world.end(page);
}

} // namespace
