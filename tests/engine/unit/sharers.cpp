// Unit tests of how processes share a card.

#include <ATen/cuda/detail/LMSCoreSharers.h>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

using namespace at::cuda::lms;

namespace {

constexpr size_t kTotal = 100'000;
constexpr size_t kUsable = 95'000;
constexpr uint64_t kNow = 1'000'000; // milliseconds

// One that was last busy so many milliseconds ago.
Sharer sharer(uint64_t reserved, uint64_t idle, uint64_t goal = 0) {
  Sharer sharer;
  sharer.reserved = reserved;
  sharer.goal = goal;
  sharer.used_ms = kNow - idle;
  sharer.seen_ms = kNow - 100;
  return sharer;
}

Sharers seen_by(const Sharer& own, const std::vector<Sharer>& others) {
  return {kTotal, own, others, kNow};
}

const Sharer kBusy = sharer(10'000, 0);

TEST(TheCard, ARecordKeepsWhatItSays) {
  Sharer sharer{1, 2, 3, 4, 5, 6};
  const auto numbers = sharer.numbers();
  EXPECT_TRUE(Sharer::from(numbers.data()).numbers() == numbers);
  EXPECT_TRUE(numbers.back() == 6);
}

TEST(TheCard, AProcessAloneHasNobodyToAsk) {
  const Sharers nobody = seen_by(kBusy, {});
  EXPECT_TRUE(nobody.is_alone() && !nobody.are_any());
  EXPECT_TRUE(nobody.share() == kUsable);
  EXPECT_TRUE(nobody.obtainable(Sharers::kRest) == 0 && !nobody.bound());
  EXPECT_TRUE(nobody.missing(0) == 0);
}

TEST(TheCard, WhoIsAtRestGivesAllThatItCan) {
  Sharer other = sharer(90'000, Sharers::kRest);
  EXPECT_TRUE(seen_by(kBusy, {other}).obtainable(Sharers::kRest) == 90'000);
  EXPECT_TRUE(seen_by(kBusy, {other}).obtainable(Sharers::kLongRest) == 0);
  other.kept = 20'000;
  EXPECT_TRUE(seen_by(kBusy, {other}).obtainable(Sharers::kRest) == 70'000);
}

TEST(TheCard, WhoIsBusyGivesWhatIsBeyondItsShare) {
  const Sharers others =
      seen_by(kBusy, {sharer(60'000, 100), sharer(20'000, 100)});
  EXPECT_TRUE(others.share() == kUsable / 3);
  EXPECT_TRUE(others.obtainable(Sharers::kRest) == 60'000 - kUsable / 3);
}

TEST(TheCard, WhoHasNotLookedLatelyCountsForNothing) {
  Sharer stopped = sharer(90'000, 5'000, 95'000);
  stopped.seen_ms = kNow - Sharers::kAlive - 1;
  const Sharers others = seen_by(kBusy, {stopped});
  EXPECT_TRUE(!others.is_alone() && !others.are_any());
  EXPECT_TRUE(others.taken() == 0);
  EXPECT_TRUE(others.obtainable(Sharers::kRest) == 0);
  EXPECT_TRUE(others.missing(0) == 0 && !others.bound());
}

TEST(TheCard, WhatIsMissingIsWantedAndNotFree) {
  const Sharers others = seen_by(kBusy, {sharer(10'000, 0, 50'000)});
  EXPECT_TRUE(others.is_any_in_want());
  EXPECT_TRUE(others.missing(0) == 40'000 + kUsable / 20);
  EXPECT_TRUE(others.missing(30'000) == 10'000 + kUsable / 20);
  EXPECT_TRUE(others.missing(50'000) == 0);
  const Sharers content = seen_by(kBusy, {sharer(50'000, 0, 50'000)});
  EXPECT_TRUE(!content.is_any_in_want() && content.missing(0) == 0);
}

TEST(TheCard, ABusyProcessLeavesWhatOthersWantAndKeepsItsShare) {
  EXPECT_TRUE(!seen_by(kBusy, {sharer(40'000, 0)}).bound());
  EXPECT_TRUE(
      seen_by(kBusy, {sharer(10'000, 0, 20'000)}).bound() == kUsable - 20'000);
  EXPECT_TRUE(
      seen_by(kBusy, {sharer(10'000, 0, 90'000)}).bound() == kUsable / 2);
  // A third process that wants nothing has what it has.
  EXPECT_TRUE(
      seen_by(kBusy, {sharer(10'000, 0, 20'000), sharer(30'000, 0)}).bound() ==
      kUsable - 50'000);
  // Who is at rest has to ask again.
  EXPECT_TRUE(!seen_by(kBusy, {sharer(0, Sharers::kRest, 90'000)}).bound());
}

TEST(TheCard, AGoalIsLargeEnoughNotToAskOften) {
  const auto goal = [](uint64_t reserved, size_t growth, size_t storages) {
    return seen_by(sharer(reserved, 0), {}).goal(growth, storages);
  };
  EXPECT_TRUE(goal(0, 100, 100) == kUsable / 4);
  EXPECT_TRUE(goal(30'000, 100, 30'100) == 60'000);
  EXPECT_TRUE(goal(0, 100, 90'000) == 90'000); // its storages come back
  EXPECT_TRUE(goal(80'000, 100, 300'000) == kUsable);
  EXPECT_TRUE(goal(80'000, 30'000, 300'000) == 110'000);
}

} // namespace
