// Unit tests of the link's free time, and of what is copied in it.

#include <ATen/cuda/detail/LMSCoreLink.h>

#include <gtest/gtest.h>

#include <memory>
#include <vector>

using namespace at::cuda::lms;

namespace {

TEST(FreeTime, IsTakenFromBothEnds) {
  FreeTime time({10, 10, 10, 10});
  EXPECT_EQ(time.sum(0, 4), 40u);
  EXPECT_EQ(time.sum(3, 2), 20u); // around
  EXPECT_EQ(time.sum(1, 100), 40u); // no more than there is
  time.take_first(1, 3, 15);
  EXPECT_EQ(time.sum(1, 1), 0u);
  EXPECT_EQ(time.sum(2, 2), 15u);
  EXPECT_EQ(time.last(1, 3, 12), 2u);
  EXPECT_EQ(time.take_last(1, 3, 12), 0u);
  EXPECT_EQ(time.sum(1, 3), 3u);
  EXPECT_EQ(time.take_last(3, 2, 10), 0u); // around: all of position 0
  EXPECT_EQ(time.sum(0, 1), 0u);
  EXPECT_EQ(time.take_last(1, 3, 10), 7u); // there is no more
  EXPECT_EQ(time.take_first(0, 4, 100), 100u);
  EXPECT_EQ(time.sum(0, 4), 0u);
}

constexpr uint32_t kOperators = 20;
constexpr uint32_t kNs = 100; // of each
constexpr size_t kCapacity = 1000; // bytes

// Evicted pages of 100 bytes, whose copies take 100 ns.
class TheLink : public testing::Test {
 protected:
  TheLink() : resident(kOperators, 0) {
    cycle.starts.assign(kOperators, 0);
    cycle.ns.assign(kOperators, kNs);
  }

  // Used at `begin`, in the way `away` operators later, used again at `end`.
  void add(uint32_t begin, uint32_t away, uint32_t end, uint8_t gain) {
    Interval it;
    it.begin = begin;
    it.away = away;
    it.length = end - begin;
    it.gain = gain;
    it.is_evicted = true;
    it.is_after_write = true;
    it.bytes = 100;
    cycle.intervals.push_back(it);
    cycle.before.push_back(Cycle::kNone);
  }
  std::vector<bool> copied() {
    Link(cycle, resident, kCapacity, /*copy_ns=*/1).run();
    std::vector<bool> copied;
    for (const Interval& it : cycle.intervals) {
      copied.push_back(it.is_copied);
    }
    return copied;
  }

  double copying_us() {
    Link link(cycle, resident, kCapacity, /*copy_ns=*/1);
    link.run();
    return link.copying_us();
  }

  Cycle cycle;
  std::vector<int64_t> resident;
};

TEST_F(TheLink, TakesNoLongerThanTheOperatorsWhereItHasTime) {
  add(0, 4, 10, /*gain=*/0);
  EXPECT_DOUBLE_EQ(copying_us(), 2); // of 20 operators
}

TEST_F(TheLink, TakesLongerByWhatItHasNoTimeFor) {
  for (int i = 0; i < 3; ++i) {
    add(0, 2, 18, /*gain=*/0); // 300 ns to the host within 200
  }
  EXPECT_DOUBLE_EQ(copying_us(), 2.1);
  for (int i = 0; i < 4; ++i) {
    add(1, 17, 19, /*gain=*/0); // and 400 back within 0
  }
  EXPECT_DOUBLE_EQ(copying_us(), 2.4); // both directions at a time
}

TEST_F(TheLink, CopiesTheDearestWhileThereIsTime) {
  add(0, 5, 12, /*gain=*/9); // 200 ns of 500 are left: no slack
  add(0, 5, 12, /*gain=*/3);
  add(0, 5, 12, /*gain=*/5);
  add(0, 5, 12, /*gain=*/7);
  EXPECT_EQ(copied(), (std::vector<bool>{false, true, true, true}));
}

TEST_F(TheLink, CopiesWhatIsAwayForLongest) {
  add(0, 3, 10, /*gain=*/5);
  add(0, 3, 15, /*gain=*/5);
  EXPECT_EQ(copied(), (std::vector<bool>{false, true}));
}

TEST_F(TheLink, HasToBeDoneBeforeTheMemoryIsNeeded) {
  add(0, 2, 15, /*gain=*/5);
  EXPECT_EQ(copied(), (std::vector<bool>{false}));
}

TEST_F(TheLink, HasToBringThePageBackInTime) {
  add(0, 5, 7, /*gain=*/5); // one operator in between
  EXPECT_EQ(copied(), (std::vector<bool>{false}));
}

TEST_F(TheLink, NeedsRoomForWhatComesBack) {
  add(0, 4, 10, /*gain=*/5);
  resident[9] = kCapacity - 99;
  EXPECT_EQ(copied(), (std::vector<bool>{false}));
  resident[9] = kCapacity - 100;
  EXPECT_EQ(copied(), (std::vector<bool>{true}));
}

TEST_F(TheLink, CopiesFirstWhatCannotBeMadeAgain) {
  add(0, 3, 10, /*gain=*/5);
  add(0, 3, 10, /*gain=*/0);
  EXPECT_EQ(copied(), (std::vector<bool>{false, true}));
}

TEST_F(TheLink, IsNotUsedForWhatDiesAndCanBeMadeAgain) {
  add(0, 4, 0, /*gain=*/5);
  add(0, 4, 0, /*gain=*/0);
  EXPECT_EQ(copied(), (std::vector<bool>{false, true}));
}

TEST_F(TheLink, KnowsOfWhatDiesWhetherItCanBeMadeAgain) {
  constexpr uint64_t kLength = 4; // of the sequence that comes again and again
  History history;
  std::vector<std::unique_ptr<Page>> pages;
  for (uint64_t i = 0; i < 10 * kLength; ++i) {
    pages.push_back(std::make_unique<Page>());
    pages.back()->bytes = 4;
    Operator op;
    op.name = i % kLength;
    op.uses = {{pages.back().get(), /*writes=*/true}};
    history.append(op);
    if (i > 0) {
      history.on_death(pages[i - 1].get(), /*gain=*/i % 2 ? 7 : 0);
    }
  }
  CycleReader reader(history);
  ASSERT_TRUE(reader.read(history, kLength) && reader.is_done());
  size_t with_gain = 0;
  for (const Interval& it : reader.take().intervals) {
    EXPECT_TRUE(it.gain == 0 || it.gain == 7);
    with_gain += it.gain == 7 ? 1 : 0;
  }
  EXPECT_EQ(with_gain, kLength / 2);
}

TEST_F(TheLink, LeavesAloneWhatIsMadeInNoTime) {
  add(0, 4, 10, /*gain=*/200);
  EXPECT_EQ(copied(), (std::vector<bool>{false}));
}

TEST_F(TheLink, GoesAround) {
  add(18, 6, 30, /*gain=*/5);
  EXPECT_EQ(copied(), (std::vector<bool>{true}));
}

} // namespace
