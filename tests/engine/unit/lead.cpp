// Unit tests of how far the host may be ahead of the device.

#include <ATen/cuda/detail/LMSCoreLead.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>

using namespace at::cuda::lms;

namespace {

constexpr size_t kMiB = size_t{1} << 20;

// Launches operators that touch so many bytes, take so many nanoseconds (0: it
// is not known), and whose marks are their numbers. Returns how many the host
// was at most ahead of the last one that it has waited for.
size_t longest_lead(size_t operators, size_t bytes, uint32_t ns = 0) {
  Page page;
  page.bytes = bytes;
  Operator op;
  op.uses.push_back({&page, false});
  op.ns = ns;
  Lead<size_t> lead;
  size_t waited_for = 0;
  size_t longest = 0;
  for (size_t i = 1; i <= operators; ++i) {
    if (lead.add(op, /*makes_again=*/ns > 0)) {
      if (const auto mark = lead.put(i)) {
        EXPECT_TRUE(*mark > waited_for);
        waited_for = *mark;
      }
    }
    longest = std::max(longest, i - waited_for);
  }
  return longest;
}

TEST(TheLead, LargeOperatorsAreCounted) {
  const size_t longest = longest_lead(100, 1024 * kMiB);
  EXPECT_TRUE(longest >= 16);
  EXPECT_TRUE(longest <= 20);
}

TEST(TheLead, OfSmallOperatorsTheBytesAreCounted) {
  const size_t longest = longest_lead(100'000, kMiB);
  EXPECT_TRUE(longest >= 1024);
  EXPECT_TRUE(longest <= 1280);
}

TEST(TheLead, TimesThatAreKnownAreCounted) {
  const size_t longest = longest_lead(100'000, 1024 * kMiB, 100'000);
  EXPECT_TRUE(longest >= 80); // 8 ms
  EXPECT_TRUE(longest <= 100);
}

TEST(TheLead, OperatorsThatTouchNothingNeverWait) {
  EXPECT_TRUE(longest_lead(100'000, 0) == 100'000);
}

TEST(TheLead, TheOldestMarkIsOvertaken) {
  Lead<size_t> lead;
  for (size_t mark = 1; mark <= 4; ++mark) {
    EXPECT_TRUE(!lead.put(mark));
  }
  EXPECT_TRUE(lead.put(5) == 1);
  EXPECT_TRUE(lead.put(6) == 2);
}

TEST(TheLead, AMarkBeginsAnotherGroup) {
  Page page;
  page.bytes = 1024 * kMiB;
  Operator op;
  op.uses.push_back({&page, false});
  Lead<size_t> lead;
  for (size_t group = 0; group < 2; ++group) {
    EXPECT_TRUE(
        !lead.add(op, false) && !lead.add(op, false) && !lead.add(op, false));
    EXPECT_TRUE(lead.add(op, false));
    lead.put(group);
  }
}

TEST(TheLead, WhatWasClearedIsNotWaitedFor) {
  Lead<size_t> lead;
  for (size_t mark = 1; mark <= 4; ++mark) {
    EXPECT_TRUE(!lead.put(mark));
  }
  lead.clear();
  EXPECT_TRUE(!lead.put(5));
}

} // namespace
