// Unit tests of how the limit of device memory follows the card.

#include <ATen/cuda/detail/LMSCoreLimit.h>

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <optional>

using namespace at::cuda::lms;

namespace {

constexpr size_t kTotal = 80'000;
constexpr size_t kAny = std::numeric_limits<size_t>::max();

Limit by_default() {
  Limit limit;
  limit.set(kTotal, kAny, /*is_default=*/true, {kTotal, 0});
  return limit;
}

Limit by_the_program(size_t bytes) {
  Limit limit;
  limit.set(kTotal, bytes, /*is_default=*/false, {kTotal, 0});
  return limit;
}

// Operators until it is time to look, at most so many.
size_t operators_until_due(Limit& limit, size_t most) {
  for (size_t i = 1; i <= most; ++i) {
    if (limit.is_due()) {
      return i;
    }
  }
  return 0;
}

TEST(TheLimit, TheDefaultIsAShareOfWhatIsFreeAndReserved) {
  EXPECT_TRUE(by_default().bytes() == 76'000);
  Limit limit;
  limit.set(kTotal, kAny, /*is_default=*/true, {10'000, 30'000});
  EXPECT_TRUE(limit.bytes() == 38'000);
  limit.set(kTotal, 20'000, /*is_default=*/true, {10'000, 30'000});
  EXPECT_TRUE(limit.bytes() == 20'000);
}

TEST(TheLimit, TheFractionGivesTheBytes) {
  for (const size_t bytes : {size_t{1}, size_t{33'333}, kTotal - 1, kTotal}) {
    const double fraction = by_the_program(bytes).fraction();
    EXPECT_TRUE(fraction <= 1);
    EXPECT_TRUE(static_cast<size_t>(fraction * kTotal) == bytes);
  }
}

TEST(TheLimit, NothingChangesWhileHalfOfTheRestIsFree) {
  Limit limit = by_default();
  EXPECT_TRUE(!limit.look({4'000, 76'000}));
  EXPECT_TRUE(!limit.look({2'000, 76'000}));
  EXPECT_TRUE(!limit.look({40'000, 38'000}));
  EXPECT_TRUE(!limit.look_before_growth({42'000, 36'000}, 40'000));
  EXPECT_TRUE(limit.bytes() == 76'000);
}

TEST(TheLimit, ItSinksUntilTheRestIsFreeAgain) {
  Limit limit = by_default();
  EXPECT_TRUE(limit.look({1'000, 76'000}));
  EXPECT_TRUE(limit.bytes() == 77'000 / 100 * 95);
  EXPECT_TRUE(!limit.look({77'000 - limit.bytes(), limit.bytes()}));
}

TEST(TheLimit, GrowthThatWouldTakeTheRestIsNoticed) {
  Limit limit = by_default();
  EXPECT_TRUE(!limit.look({30'000, 40'000}));
  EXPECT_TRUE(limit.look_before_growth({30'000, 40'000}, 29'000));
  EXPECT_TRUE(limit.bytes() == 66'500);
}

TEST(TheLimit, ItRisesWhenMuchIsFree) {
  Limit limit = by_default();
  EXPECT_TRUE(limit.look({0, 40'000}));
  EXPECT_TRUE(limit.bytes() == 38'000);
  EXPECT_TRUE(!limit.look({3'500, 38'000}));
  EXPECT_TRUE(limit.look({42'000, 38'000}));
  EXPECT_TRUE(limit.bytes() == 76'000);
}

TEST(TheLimit, ItRisesForARequestThatWouldFail) {
  Limit limit = by_default();
  EXPECT_TRUE(limit.look({0, 40'000}));
  EXPECT_TRUE(!limit.rise({0, 38'000}));
  EXPECT_TRUE(limit.rise({3'500, 38'000})); // by little, too
  EXPECT_TRUE(limit.bytes() == 39'425);
  EXPECT_TRUE(limit.rise({3'500, 38'000, 20'000, 0})); // others are asked
  EXPECT_TRUE(limit.bytes() == 58'425);
  EXPECT_TRUE(limit.set_share(30'000));
  EXPECT_TRUE(limit.rise({3'500, 38'000})); // beyond its share
  EXPECT_TRUE(limit.bytes() == 39'425);
  Limit set = by_the_program(50'000);
  EXPECT_TRUE(!set.rise({42'000, 38'000}));
}

TEST(TheLimit, WhatHasToBeFreeForALimitOfSoMuch) {
  const Limit::Card card{0, 10'000};
  Limit limit = by_default();
  const std::optional<size_t> needed = limit.needed_for_limit(card, 28'000);
  ASSERT_TRUE(needed && *needed <= 30'100);
  EXPECT_TRUE(limit.sink(card) && limit.rise({*needed, 10'000}));
  EXPECT_TRUE(limit.bytes() >= 38'000);
  EXPECT_TRUE(!limit.needed_for_limit(card, kTotal));
  EXPECT_TRUE(!by_the_program(30'000).needed_for_limit(card, 28'000));
}

TEST(TheLimit, WhatTheProgramSetIsTakenAtItsWord) {
  Limit limit = by_the_program(79'000);
  EXPECT_TRUE(!limit.follows());
  EXPECT_TRUE(operators_until_due(limit, 100'000) == 0);
  EXPECT_TRUE(!limit.look_before_growth({1'000, 60'000}, 1'000));
  EXPECT_TRUE(limit.bytes() == 79'000);
}

TEST(TheLimit, ARefusalIsLearned) {
  Limit limit = by_the_program(79'000);
  EXPECT_TRUE(limit.learn_refusal({1'000, 60'000}, 2'000));
  EXPECT_TRUE(limit.bytes() == 61'000 / 100 * 95);
  EXPECT_TRUE(limit.follows());
  // It never rises above what was set.
  EXPECT_TRUE(limit.look({20'000, 60'000}));
  EXPECT_TRUE(limit.bytes() == 76'000);
  Limit lower = by_the_program(50'000);
  EXPECT_TRUE(lower.learn_refusal({0, 20'000}, 1'000));
  EXPECT_TRUE(lower.bytes() == 19'000);
  EXPECT_TRUE(lower.look({60'000, 20'000}));
  EXPECT_TRUE(lower.bytes() == 50'000);
  EXPECT_TRUE(!lower.follows());
}

TEST(TheLimit, WhatOthersWouldGiveCountsAsFree) {
  Limit limit;
  limit.set(kTotal, kAny, /*is_default=*/true, {10'000, 0, 70'000, 0});
  EXPECT_TRUE(limit.bytes() == 76'000);
  // They have to be asked where the card itself has too little left.
  const Limit::Card card{3'000, 7'000, 70'000, 0};
  EXPECT_TRUE(card.free < Limit::needed(card, 2'000));
  EXPECT_TRUE(!limit.look_before_growth(card, 2'000));
  // They do not give it.
  EXPECT_TRUE(limit.sink({3'000, 7'000}));
  EXPECT_TRUE(limit.bytes() == 9'500);
  // It rises for what has been at rest for long, and not before.
  EXPECT_TRUE(!limit.look(card));
  EXPECT_TRUE(limit.look({3'000, 7'000, 70'000, 70'000}));
  EXPECT_TRUE(limit.bytes() == 76'000);
}

TEST(TheLimit, ItSinksToWhatOthersLeave) {
  Limit limit = by_default();
  EXPECT_TRUE(!limit.set_share(Limit::kAll) && !limit.set_share(76'000));
  EXPECT_TRUE(!limit.set_share(75'500)); // too little to begin anew for
  EXPECT_TRUE(limit.set_share(38'000));
  EXPECT_TRUE(limit.bytes() == 38'000);
  EXPECT_TRUE(!limit.look({42'000, 38'000})); // that is for the others
  EXPECT_TRUE(!limit.set_share(Limit::kAll));
  EXPECT_TRUE(limit.look({42'000, 38'000}));
  EXPECT_TRUE(limit.bytes() == 76'000);
  Limit set = by_the_program(79'000);
  EXPECT_TRUE(set.set_share(38'000) && set.follows());
}

TEST(TheLimit, ALookCanBeDueSoon) {
  Limit limit = by_default();
  limit.look_soon();
  EXPECT_TRUE(limit.is_due());
  EXPECT_TRUE(operators_until_due(limit, 10'000) > 1'000);
}

TEST(TheLimit, ARefusalWithoutReasonIsTriedAgainEverMoreSeldom) {
  Limit limit = by_default();
  const Limit::Card card{50'000, 30'000};
  size_t last = 0;
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(limit.learn_refusal(card, 2'000));
    EXPECT_TRUE(limit.bytes() < 32'000); // the same request has to make room
    const size_t operators = operators_until_due(limit, 1'000'000);
    EXPECT_TRUE(operators >= 2 * last && operators > 0);
    last = operators;
    EXPECT_TRUE(limit.look(card));
    EXPECT_TRUE(limit.bytes() == 76'000);
  }
}

} // namespace
