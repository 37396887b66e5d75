// Unit tests of how far the host may be ahead of the device.

#include <ATen/cuda/detail/LMSLead.h>

#include "harness.h"

#include <cstddef>
#include <vector>

using namespace at::cuda::lms;

namespace {

constexpr size_t kMiB = size_t{1} << 20;

// Launches operators that touch so many bytes, and whose marks are their
// numbers. Returns by operator how many the host is ahead of the last one that
// it has waited for.
std::vector<size_t> leads(size_t operators, size_t bytes) {
  Page page;
  page.bytes = bytes;
  Operator op;
  op.uses.push_back({&page, false});
  Lead<size_t> lead;
  std::vector<size_t> found;
  size_t waited_for = 0;
  for (size_t i = 1; i <= operators; ++i) {
    if (lead.add(op)) {
      lead.put(i);
      if (const auto mark = lead.overtaken()) {
        EXPECT(*mark > waited_for);
        waited_for = *mark;
      }
    }
    found.push_back(i - waited_for);
  }
  return found;
}

size_t most(const std::vector<size_t>& numbers) {
  size_t found = 0;
  for (const size_t number : numbers) {
    found = number > found ? number : found;
  }
  return found;
}

TEST(LargeOperatorsAreCounted) {
  const auto found = leads(100, 1024 * kMiB);
  EXPECT(most(found) >= 16);
  EXPECT(most(found) <= 20);
}

TEST(OfSmallOperatorsTheBytesAreCounted) {
  const auto found = leads(100'000, kMiB);
  EXPECT(most(found) >= 1024);
  EXPECT(most(found) <= 1280);
}

TEST(OperatorsThatTouchNothingNeverWait) {
  EXPECT(most(leads(100'000, 0)) == 100'000);
}

TEST(WhatWasClearedIsNotWaitedFor) {
  Lead<size_t> lead;
  for (size_t mark = 1; mark <= 4; ++mark) {
    lead.put(mark);
    EXPECT(!lead.overtaken());
  }
  lead.clear();
  lead.put(5);
  EXPECT(!lead.overtaken());
}

} // namespace

int main() {
  return run_tests();
}
