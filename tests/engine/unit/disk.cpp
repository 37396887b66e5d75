// Unit tests of the disk below the host's memory: what goes there, what comes
// back, and what is lost where it fails (nothing).

#include "fake_world.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

using namespace at::cuda::lms;

namespace {

using State = PageEntry::State;
using Kind = DiskTransfer::Kind;

class TheDisk : public testing::Test {
 protected:
  TheDisk() {
    world.start(/*pages=*/8);
    world.host_pages = 2;
    world.disk_pages = 100;
  }
  // Ends it with the test.
  PageEntry* make() {
    pages.emplace_back(world.make(), Ender{&world});
    return pages.back().get();
  }
  std::vector<PageEntry*> make(size_t count) {
    std::vector<PageEntry*> made;
    for (size_t i = 0; i < count; ++i) {
      made.push_back(make());
    }
    return made;
  }
  size_t on_host() const {
    size_t count = 0;
    for (const auto& page : pages) {
      count += page->host.empty() ? 0 : 1;
    }
    return count;
  }
  // Pages that have a place there.
  size_t on_disk() {
    world.transfers.clear();
    return world.on_disk;
  }
  static PageEntry* first_on_disk_only(const std::vector<PageEntry*>& made) {
    for (PageEntry* page : made) {
      if (page->host.empty()) {
        return page;
      }
    }
    throw std::logic_error("all are on the host");
  }
  // It is on the device and on disk; others that are needed from operator 100
  // on fill the host's memory.
  PageEntry* make_one_from_disk() {
    const auto made = make(4);
    for (size_t i = 0; i < made.size(); ++i) {
      foresee(made[i], 100 + i);
    }
    world.evict_all();
    PageEntry* back = first_on_disk_only(made);
    world.use(back);
    world.pager.books.host.free(back);
    return back;
  }
  // Of an operator that needs it at this one, or at none.
  void foresee(PageEntry* page, uint64_t next_use) {
    const Lock lock(world.pager.books.mutex);
    page->next_use = next_use;
  }

  struct Ender {
    FakeWorld* world;
    void operator()(PageEntry* page) const {
      world->end(page);
    }
  };

  FakeWorld world;
  std::vector<std::unique_ptr<PageEntry, Ender>> pages;
};

TEST_F(TheDisk, is_not_used_while_the_host_has_memory) {
  world.host_pages = 4;
  const auto made = make(4);
  EXPECT_EQ(world.evict_all(), 4u);
  world.run();
  EXPECT_TRUE(world.transfers.empty());
}

TEST_F(TheDisk, takes_what_the_host_has_no_memory_for) {
  const auto made = make(4);
  EXPECT_EQ(world.evict_all(), 4u);
  EXPECT_GE(world.count(Kind::kWrite), 2u);
  EXPECT_EQ(on_host(), 2u);
  for (PageEntry* page : made) {
    EXPECT_EQ(page->state, State::kPagedOut);
    EXPECT_TRUE(page->disk || !page->host.empty());
  }
  for (PageEntry* page : made) {
    world.use(page);
    EXPECT_EQ(page->state, State::kResident);
  }
}

TEST_F(TheDisk, takes_what_begins_on_the_host_and_does_not_fit_there) {
  for (int i = 0; i < 6; ++i) {
    pages.emplace_back(world.make_on_host(), Ender{&world});
    ASSERT_TRUE(pages.back());
  }
  EXPECT_EQ(on_host(), 2u);
  EXPECT_GE(world.count(Kind::kWrite), 4u);
  for (const auto& page : pages) {
    world.use(page.get());
    EXPECT_EQ(page->state, State::kResident);
  }
}

TEST_F(TheDisk, what_is_needed_last_goes_first) {
  const auto made = make(3);
  foresee(made[0], 30);
  foresee(made[1], 10);
  foresee(made[2], 20);
  EXPECT_EQ(world.evict_all(), 3u);
  EXPECT_TRUE(made[0]->disk);
  EXPECT_TRUE(made[0]->host.empty());
  EXPECT_FALSE(made[1]->host.empty());
}

TEST_F(TheDisk, what_is_not_foreseen_goes_before_what_is) {
  const auto made = make(3);
  foresee(made[0], 30);
  foresee(made[1], Page::kNever);
  foresee(made[2], 20);
  EXPECT_EQ(world.evict_all(), 3u);
  EXPECT_TRUE(made[1]->host.empty());
}

TEST_F(TheDisk, what_has_a_hint_for_the_host_goes_last_and_is_counted) {
  world.host_pages = 4;
  const auto made = make(8);
  for (size_t i = 0; i < made.size(); ++i) {
    foresee(made[i], 20 - i);
  }
  made[0]->hint.on_host = true;
  made[1]->hint.on_host = true;
  EXPECT_EQ(world.evict_all(), 8u);
  EXPECT_FALSE(made[0]->host.empty());
  EXPECT_FALSE(made[1]->host.empty());
  EXPECT_EQ(world.pager.books.stats.overruled, 0);
  for (PageEntry* page : make(3)) {
    page->hint.on_host = true;
  }
  EXPECT_EQ(world.evict_all(), 3u);
  EXPECT_GT(world.pager.books.stats.overruled, 0) << "four of the five fit";
}

TEST_F(TheDisk, what_has_a_hint_for_the_host_is_read_back_first) {
  const auto made = make(3);
  made[0]->hint.on_host = true;
  made[1]->hint.on_host = true;
  made[2]->hint.on_host = true;
  world.evict_all();
  PageEntry* away = first_on_disk_only(made);
  for (PageEntry* page : made) {
    if (page != away) {
      page->hint.on_host = false;
    }
  }
  for (int i = 0; i < 64; ++i) {
    world.run();
    world.catch_up_on_disk();
  }
  EXPECT_FALSE(away->host.empty()) << "no use of it is foreseen";
}

TEST_F(TheDisk, is_written_once_for_what_is_only_read) {
  const auto made = make(4);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(world.evict_all(), 4u);
    for (PageEntry* page : made) {
      world.use(page);
    }
  }
  EXPECT_LE(world.count(Kind::kWrite), 4u);
}

TEST_F(TheDisk, forgets_what_is_written_to) {
  const auto made = make(4);
  world.evict_all();
  for (PageEntry* page : made) {
    world.use(page, /*writes=*/true);
    EXPECT_FALSE(page->disk);
    EXPECT_FALSE(page->clean);
  }
  world.catch_up_on_disk();
  world.run();
  EXPECT_EQ(on_disk(), 0u);
}

TEST_F(TheDisk, keeps_memory_that_is_being_written_from) {
  std::vector<PageEntry*> made;
  for (int i = 0; i < 3; ++i) {
    made.push_back(world.make());
  }
  world.evict_all(); // for the third, two are written, and one is waited for
  const auto written =
      std::find_if(made.begin(), made.end(), [](const PageEntry* page) {
        return page->transfer && page->transfer->kind == Kind::kWrite;
      });
  ASSERT_NE(written, made.end());
  const size_t free = world.host_pages;
  world.end(*written);
  EXPECT_EQ(world.host_pages, free);
  world.catch_up_on_disk();
  world.run();
  EXPECT_EQ(world.host_pages, free + 1);
  made.erase(written);
  for (PageEntry* page : made) {
    world.end(page);
  }
}

TEST_F(TheDisk, nothing_is_lost_where_a_write_fails) {
  const auto made = make(4);
  world.disk_error = "the disk is full";
  world.evict_all();
  size_t resident = 0;
  for (PageEntry* page : made) {
    EXPECT_FALSE(page->disk);
    resident += page->state == State::kResident ? 1 : 0;
    EXPECT_TRUE(page->memory || !page->host.empty());
  }
  EXPECT_GE(resident, 1u);
  world.run();
  ASSERT_EQ(world.warnings.size(), 1u);
  EXPECT_NE(world.warnings[0].find("the disk is full"), std::string::npos);
}

TEST_F(TheDisk, a_read_that_fails_is_an_error_and_may_be_tried_again) {
  const auto made = make(4);
  world.evict_all();
  PageEntry* away = first_on_disk_only(made);
  world.disk_error = "the disk is gone";
  EXPECT_THROW(world.use(away), std::runtime_error);
  EXPECT_EQ(away->state, State::kPagedOut);
  EXPECT_TRUE(away->disk);
  world.disk_error.clear();
  world.use(away);
  EXPECT_EQ(away->state, State::kResident);
}

TEST_F(TheDisk, reads_ahead_what_is_needed_soon) {
  const auto made = make(4);
  for (size_t i = 0; i < made.size(); ++i) {
    foresee(made[i], 100 + i);
  }
  world.evict_all();
  PageEntry* away = first_on_disk_only(made);
  for (PageEntry* page : made) {
    foresee(page, page == away ? 1 : 1000);
  }
  for (int i = 0; i < 64; ++i) {
    world.run();
    world.catch_up_on_disk();
  }
  EXPECT_FALSE(away->host.empty());
  EXPECT_EQ(away->state, State::kPagedOut);
  EXPECT_EQ(world.count(Kind::kRead), 1u) << "no other is needed sooner";
}

TEST_F(
    TheDisk,
    a_page_that_leaves_the_device_is_copied_if_it_is_needed_sooner) {
  PageEntry* back = make_one_from_disk();
  foresee(back, 1); // sooner than all that is on the host
  const size_t copies = world.count(Copy::Kind::kOut);
  world.evict_all();
  EXPECT_FALSE(back->host.empty());
  EXPECT_EQ(world.count(Copy::Kind::kOut), copies + 1);
}

TEST_F(
    TheDisk,
    a_page_that_leaves_the_device_is_left_on_disk_if_it_is_needed_last) {
  PageEntry* back = make_one_from_disk();
  foresee(back, 1000);
  world.host_pages = 0; // it has what is needed sooner
  const size_t copies = world.count(Copy::Kind::kOut);
  EXPECT_EQ(world.evict_all(), 1u);
  EXPECT_EQ(world.count(Copy::Kind::kOut), copies);
  EXPECT_EQ(back->state, State::kPagedOut);
  EXPECT_TRUE(back->disk);
}

TEST_F(TheDisk, what_dies_while_it_is_read_gives_its_memory_back) {
  world.host_pages = 1;
  PageEntry* first = world.make();
  PageEntry* second = world.make();
  foresee(first, 200);
  foresee(second, 100);
  world.evict_all();
  PageEntry* away = first->host.empty() ? first : second;
  PageEntry* here = away == first ? second : first;
  ASSERT_FALSE(here->host.empty());
  foresee(away, 1);
  foresee(here, 1000);
  for (int i = 0;
       i < 64 && !(away->transfer && away->transfer->kind == Kind::kRead);
       ++i) {
    world.catch_up_on_disk();
    world.run();
  }
  ASSERT_TRUE(away->transfer);
  world.end(away);
  world.catch_up_on_disk();
  for (int i = 0; i < 17; ++i) {
    world.run();
  }
  world.use(here); // there is memory to read it to
  world.end(here);
  EXPECT_EQ(world.host_pages, 1u);
  EXPECT_EQ(on_disk(), 0u);
}

} // namespace
