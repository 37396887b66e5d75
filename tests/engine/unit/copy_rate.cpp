// Unit tests of what a byte takes to the host.

#include <ATen/cuda/detail/LMSCoreCopyRate.h>

#include <gtest/gtest.h>

using at::cuda::lms::CopyRate;

namespace {

constexpr size_t kMiB = size_t{1} << 20;

TEST(ACopyRate, IsUnknownAtFirst) {
  EXPECT_FALSE(CopyRate().ns_per_byte().has_value());
}

TEST(ACopyRate, IsThatOfMostBytes) {
  CopyRate rate;
  rate.add(10 * kMiB, 1000);
  for (int i = 0; i < 5; ++i) {
    rate.add(kMiB, 1000);
  }
  EXPECT_DOUBLE_EQ(*rate.ns_per_byte(), 1e6 / (10 * kMiB));
}

TEST(ACopyRate, IsNotThatOfCopiesThatWereHeldUp) {
  CopyRate rate;
  for (int i = 0; i < 30; ++i) {
    rate.add(kMiB, i % 3 == 0 ? 30000 : 40);
  }
  EXPECT_DOUBLE_EQ(*rate.ns_per_byte(), 40e3 / kMiB);
}

TEST(ACopyRate, ForgetsOldCopies) {
  CopyRate rate;
  for (int i = 0; i < 100; ++i) {
    rate.add(kMiB, 80);
  }
  for (int i = 0; i < 31; ++i) {
    rate.add(kMiB, 40);
  }
  EXPECT_DOUBLE_EQ(*rate.ns_per_byte(), 40e3 / kMiB);
}

TEST(ACopyRate, LeavesOutWhatTakesNoTimeButForItsLaunch) {
  CopyRate rate;
  rate.add(kMiB, 40);
  for (int i = 0; i < 100; ++i) {
    rate.add(4096, 8);
  }
  EXPECT_DOUBLE_EQ(*rate.ns_per_byte(), 40e3 / kMiB);
}

} // namespace
