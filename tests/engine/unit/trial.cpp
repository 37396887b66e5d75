// Unit tests of the trial: whether bytes are copied or made again.

#include <ATen/cuda/detail/LMSCoreTrial.h>

#include <gtest/gtest.h>

#include <deque>
#include <utility>

using namespace at::cuda::lms;

namespace {

constexpr uint64_t kCycle = 100; // operators

// A program whose iterations take what the test says.
class ATrial : public testing::Test {
 protected:
  ATrial() {
    trial.begin(now, /*gains=*/0);
  }

  // One iteration; true if another plan was asked for, which is followed then.
  bool run(double us, double stalled, uint64_t gains = 50) {
    bool is_asked = false;
    for (uint64_t i = 0; i < kCycle; ++i) {
      ++now;
      elapsed += us / kCycle;
      clock.stalled_us += stalled / kCycle;
      seen += gains > 0 && i % (kCycle / gains) == 0 ? 1 : 0;
      pass_marks();
      const auto verdict = trial.follow(now, kCycle, seen, clock);
      if (verdict == Trial::Verdict::kMark) {
        marks.emplace_back(now, elapsed);
      } else if (verdict == Trial::Verdict::kPlanAnew) {
        is_asked = true;
        trial.begin(now, seen);
        seen = 0;
      }
    }
    return is_asked;
  }
  void pass_marks() {
    while (!marks.empty() && marks.front().first + lead <= now) {
      clock.mark = marks.front().first;
      clock.mark_us = marks.front().second - passed;
      passed = marks.front().second;
      marks.pop_front();
    }
  }
  // Iterations until another plan is asked for, at most 20.
  int until_asked(double us, double stalled, uint64_t gains = 50) {
    int iterations = 1;
    while (iterations < 20 && !run(us, stalled, gains)) {
      ++iterations;
    }
    return iterations;
  }

  Trial trial;
  uint64_t now = 1000;
  double elapsed = 5000; // microseconds
  double passed = 0; // of them, at the last mark that has passed
  std::deque<std::pair<uint64_t, double>> marks; // that have not
  uint64_t lead = 30; // operators that the host is ahead of the device
  Clock clock;
  uint64_t seen = 0;
};

TEST_F(ATrial, LeavesCopiesAloneThatNobodyWaitsFor) {
  EXPECT_EQ(until_asked(1000, 15), 20);
  EXPECT_FALSE(trial.makes_again());
}

TEST_F(ATrial, LeavesCopiesAloneWhereNothingCanBeMadeAgain) {
  EXPECT_EQ(until_asked(1000, 500, /*gains=*/0), 20);
  EXPECT_FALSE(trial.makes_again());
}

TEST_F(ATrial, KeepsWhatIsFaster) {
  // Two to settle, three that are timed, and the host is ahead.
  EXPECT_EQ(until_asked(1000, 500), 6);
  EXPECT_TRUE(trial.makes_again());
  EXPECT_EQ(until_asked(700, 20), 1); // now it knows how long that takes
  EXPECT_EQ(until_asked(600, 10), 20);
  EXPECT_TRUE(trial.makes_again());
}

TEST_F(ATrial, TimesTheDeviceAndNotTheHost) {
  until_asked(1000, 500);
  until_asked(600, 0);
  lead = 90; // where the host does not wait for copies any more
  EXPECT_EQ(until_asked(980, 0), 20);
  EXPECT_TRUE(trial.makes_again());
}

TEST_F(ATrial, GoesBackToCopiesThatAreFaster) {
  until_asked(1000, 500);
  until_asked(1100, 400);
  EXPECT_EQ(until_asked(1100, 400), 4);
  EXPECT_FALSE(trial.makes_again());
  // Once more, of cycles that only copied; and it tries no more.
  EXPECT_EQ(until_asked(1000, 500), 2);
  EXPECT_FALSE(trial.makes_again());
  EXPECT_EQ(until_asked(1000, 500), 20);
}

TEST_F(ATrial, TimesIterationsThatDiffer) {
  for (const double us : {1000, 1000, 900, 1200, 900}) {
    EXPECT_FALSE(run(us, 500));
  }
  EXPECT_TRUE(run(1000, 500)); // which took 1000 in the mean
  until_asked(950, 10);
  EXPECT_EQ(until_asked(950, 10), 20);
  EXPECT_TRUE(trial.makes_again());
}

TEST_F(ATrial, PlansAnewWhileItKnowsMore) {
  until_asked(1000, 500, /*gains=*/10);
  EXPECT_EQ(until_asked(900, 10, /*gains=*/10), 1);
  EXPECT_EQ(until_asked(800, 10, /*gains=*/50), 1);
  EXPECT_EQ(until_asked(600, 10, /*gains=*/100), 20);
  EXPECT_TRUE(trial.makes_again());
}

TEST_F(ATrial, NoticesWhenStallsBegin) {
  EXPECT_EQ(until_asked(1000, 0), 20);
  EXPECT_LE(until_asked(1500, 500), 4);
  EXPECT_TRUE(trial.makes_again());
}

TEST_F(ATrial, KnowsNothingOfAnotherSequence) {
  until_asked(1000, 500);
  trial.forget();
  EXPECT_FALSE(trial.makes_again());
}

} // namespace
