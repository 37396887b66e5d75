// Unit tests of what is written back early, and where.

#include <ATen/cuda/detail/LMSCoreSaving.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

using namespace at::cuda::lms;

namespace {

constexpr uint32_t kOperators = 20;
constexpr uint32_t kNs = 100; // of each
constexpr size_t kBytes = 100; // of each page, whose copy takes 100 ns

// Uses of pages in a cycle of kOperators.
class Saves : public testing::Test {
 protected:
  struct Of {
    uint32_t position;
    bool writes;
  };
  Saves() {
    cycle.starts.assign(kOperators, 0);
    cycle.ns.assign(kOperators, kNs);
  }

  // A page that dies `death` operators after the last use, or, if that is 0,
  // comes back in the next cycle. Its intervals.
  std::vector<uint32_t> add(const std::vector<Of>& uses, uint32_t death = 0) {
    std::vector<uint32_t> numbers;
    for (size_t i = 0; i < uses.size(); ++i) {
      Interval it;
      it.begin = uses[i].position;
      it.bytes = kBytes;
      it.is_after_write = uses[i].writes;
      const bool is_last = i + 1 == uses.size();
      const uint32_t next =
          is_last ? uses[0].position + kOperators : uses[i + 1].position;
      it.length = is_last && death > 0 ? 0 : next - it.begin;
      it.death = is_last ? death : 0;
      numbers.push_back(static_cast<uint32_t>(cycle.intervals.size()));
      cycle.before.push_back(i > 0 ? numbers[i - 1] : Cycle::kNone);
      cycle.intervals.push_back(it);
    }
    if (death == 0) {
      cycle.before[numbers.front()] = numbers.back();
    }
    return numbers;
  }
  void evict(uint32_t number) {
    cycle.intervals[number].is_evicted = true;
  }
  // Positions and intervals.
  std::vector<std::pair<uint32_t, uint32_t>> saves(double copy_ns = 1) {
    std::vector<std::pair<uint32_t, uint32_t>> all;
    const auto found = Saving(cycle, copy_ns).run();
    for (uint32_t position = 0; position < kOperators; ++position) {
      for (const uint32_t number : found[position]) {
        all.emplace_back(position, number);
      }
    }
    return all;
  }
  bool is_free(uint32_t number) {
    return Saving(cycle, /*copy_ns=*/1).free_deaths()[number] != 0;
  }

  Cycle cycle;
};

using Found = std::vector<std::pair<uint32_t, uint32_t>>;

TEST_F(Saves, WhatIsReadBeforeItIsEvicted) {
  const auto page = add({{2, true}, {8, false}});
  evict(page[1]);
  EXPECT_EQ(saves(), (Found{{2, page[0]}}));
  EXPECT_TRUE(cycle.intervals[page[0]].is_saved);
  EXPECT_FALSE(cycle.intervals[page[1]].is_saved);
}

TEST_F(Saves, NothingThatIsWrittenLast) {
  const auto page = add({{2, true}, {8, true}});
  evict(page[1]);
  EXPECT_EQ(saves(), Found{});
}

TEST_F(Saves, NothingThatTheHostHas) {
  const auto page = add({{2, false}, {5, false}, {8, false}});
  evict(page[0]);
  evict(page[2]);
  EXPECT_EQ(saves(), Found{});
}

TEST_F(Saves, NothingThatIsMadeAgain) {
  const auto page = add({{2, true}, {8, false}});
  evict(page[1]);
  cycle.intervals[page[1]].is_copied = false;
  EXPECT_EQ(saves(), Found{});
}

TEST_F(Saves, AcrossTheEndOfTheCycle) {
  const auto page = add({{3, false}, {18, true}});
  evict(page[0]); // after the use at 3, of what was written at 18
  EXPECT_EQ(saves(), (Found{{18, page[1]}}));
}

TEST_F(Saves, TheSoonestEvictedWhenTheLinkIsFree) {
  const double copy_ns = 50'000; // 5 ms: one at a time, each for all operators
  cycle.ns.assign(kOperators, 1'000'000);
  const auto late = add({{1, true}, {2, false}, {15, false}});
  const auto soon = add({{1, true}, {9, false}});
  evict(late[2]);
  evict(soon[1]);
  // The other one waits until less than 4 ms are under way, between two reads.
  EXPECT_EQ(saves(copy_ns), (Found{{1, soon[0]}, {3, late[1]}}));
}

TEST_F(Saves, AtOnceWhereNothingIsTimed) {
  cycle.ns.assign(kOperators, 0);
  for (int i = 0; i < 3; ++i) {
    evict(add({{1, true}, {9, false}})[1]);
  }
  EXPECT_EQ(saves(/*copy_ns=*/0), (Found{{1, 0}, {1, 2}, {1, 4}}));
  EXPECT_LE(saves(/*copy_ns=*/50'000).size(), 1u); // it is not known how long
}

TEST_F(Saves, DeathsForNothing) {
  const auto page = add({{2, true}, {8, false}}, /*death=*/6);
  EXPECT_TRUE(is_free(page[1]));
  EXPECT_FALSE(is_free(page[0]));
  EXPECT_FALSE(is_free(add({{2, true}, {8, true}}, 6)[1])); // just written
  EXPECT_FALSE(is_free(add({{7, true}, {8, false}}, 6)[1])); // no time
  EXPECT_FALSE(is_free(add({{2, true}, {8, false}})[1])); // comes back
}

TEST_F(Saves, DeathsShareTheLink) {
  std::vector<uint32_t> last;
  for (int i = 0; i < 6; ++i) {
    last.push_back(add({{2, true}, {8, false}}, 6)[1]);
  }
  // 600 ns, of which the last copy must leave twice as much as it takes.
  int count = 0;
  for (const uint32_t number : last) {
    count += is_free(number) ? 1 : 0;
  }
  EXPECT_EQ(count, 4);
}

} // namespace
