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
  // One iteration; true if another plan was asked for, which is followed then
  // unless the trial declines it.
  bool run(double us, uint64_t gains = 50) {
    bool is_asked = false;
    for (uint64_t i = 0; i < kCycle; ++i) {
      ++now;
      elapsed += us / kCycle;
      seen += gains > 0 && i % (kCycle / gains) == 0 ? 1 : 0;
      pass_marks();
      const auto verdict = trial.follow(now, kCycle, seen, clock);
      if (verdict == Trial::Verdict::kMark) {
        marks.emplace_back(now, elapsed);
      } else if (verdict == Trial::Verdict::kPlanAnew) {
        is_asked = true;
        follow_another(gains);
      }
    }
    return is_asked;
  }
  void follow_another(uint64_t gains = 50) {
    if (!trial.declines(reckoned_us)) {
      trial.begin(now, trial.makes_again() ? gains : 0);
      seen = 0;
    }
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
  int until_asked(double us, uint64_t gains = 50) {
    int iterations = 1;
    while (iterations < 20 && !run(us, gains)) {
      ++iterations;
    }
    return iterations;
  }
  // Follows a plan that makes bytes again until it has been timed.
  void time_making(double us) {
    follow_another();
    EXPECT_EQ(until_asked(us), 1); // now it knows how long that takes
    // One to settle, three that are timed, and the host is ahead.
    EXPECT_EQ(until_asked(us), 5);
  }
  // And one that only copies.
  int until_timed_copying(double us) {
    EXPECT_FALSE(trial.makes_again());
    EXPECT_EQ(until_asked(us), 1); // the first was made of the other kind
    return until_asked(us);
  }

  Trial trial;
  uint64_t now = 1000;
  double elapsed = 5000; // microseconds
  double passed = 0; // of them, at the last mark that has passed
  std::deque<std::pair<uint64_t, double>> marks; // that have not
  uint64_t lead = 30; // operators that the host is ahead of the device
  double reckoned_us = 0; // that copies take by their plan
  Clock clock;
  uint64_t seen = 0;
};

TEST_F(ATrial, MakesAgainWithoutAPlan) {
  EXPECT_TRUE(trial.makes_again());
}

TEST_F(ATrial, KeepsWhatIsFaster) {
  time_making(600);
  EXPECT_EQ(until_timed_copying(1000), 5);
  EXPECT_TRUE(trial.makes_again());
  EXPECT_EQ(until_asked(600), 1);
  EXPECT_EQ(until_asked(600), 20); // and it tries no more
  EXPECT_TRUE(trial.makes_again());
}

TEST_F(ATrial, StaysWithCopiesThatAreFaster) {
  time_making(1100);
  EXPECT_EQ(until_timed_copying(1000), 20);
  EXPECT_FALSE(trial.makes_again());
}

TEST_F(ATrial, DoesNotTryCopiesThatCannotBeFaster) {
  reckoned_us = 630;
  time_making(600);
  EXPECT_TRUE(trial.makes_again());
  EXPECT_EQ(until_asked(600), 20);
  EXPECT_TRUE(trial.makes_again());
}

TEST_F(ATrial, TriesCopiesThatCouldBeFaster) {
  reckoned_us = 610; // which is right to a few percent only
  time_making(600);
  EXPECT_FALSE(trial.makes_again());
}

TEST_F(ATrial, TimesTheDeviceAndNotTheHost) {
  time_making(980);
  lead = 90; // where the host does not wait for copies any more
  EXPECT_LE(until_timed_copying(1000), 6); // its marks pass later
  EXPECT_TRUE(trial.makes_again());
}

TEST_F(ATrial, TimesIterationsThatDiffer) {
  follow_another();
  until_asked(1000);
  run(1000);
  for (const double us : {900, 1200, 900}) {
    EXPECT_FALSE(run(us));
  }
  EXPECT_TRUE(run(1000)); // which took 1000 in the mean
  EXPECT_EQ(until_timed_copying(1005), 20);
  EXPECT_FALSE(trial.makes_again()); // it would be so little faster
}

TEST_F(ATrial, PlansAnewWhileItKnowsMore) {
  follow_another(/*gains=*/10);
  EXPECT_EQ(until_asked(900, /*gains=*/10), 1);
  EXPECT_EQ(until_asked(800, /*gains=*/50), 1);
  reckoned_us = 1000;
  EXPECT_EQ(until_asked(600, /*gains=*/100), 5); // three plans are enough
}

TEST_F(ATrial, PlansAnewAfterATimeWithoutAPlan) {
  reckoned_us = 1000;
  time_making(600);
  trial.end_plan();
  follow_another();
  EXPECT_EQ(until_asked(600), 1);
  EXPECT_EQ(until_asked(600), 20);
}

TEST_F(ATrial, DoesNotTryAgainWhatWasInterrupted) {
  time_making(600);
  run(500);
  EXPECT_FALSE(trial.makes_again());
  trial.end_plan();
  EXPECT_TRUE(trial.makes_again());
  follow_another();
  EXPECT_EQ(until_asked(600), 1);
  EXPECT_EQ(until_asked(600), 20);
  EXPECT_TRUE(trial.makes_again());
}

TEST_F(ATrial, TriesNothingWhereNothingCanBeMadeAgain) {
  follow_another(/*gains=*/0);
  EXPECT_EQ(until_asked(1000, /*gains=*/0), 20);
  EXPECT_EQ(until_asked(1000), 1); // now something can
}

TEST_F(ATrial, KnowsNothingOfAnotherSequence) {
  time_making(600);
  trial.forget();
  EXPECT_TRUE(trial.makes_again());
}

TEST_F(ATrial, TheSecondPlanThatCopiesMayBeDeclinedToo) {
  time_making(600);
  EXPECT_EQ(until_asked(1000), 1); // the first, made of the other kind's cycle
  reckoned_us = 1000; // by what the second knows
  EXPECT_TRUE(trial.declines(reckoned_us));
  EXPECT_TRUE(trial.makes_again());
  EXPECT_FALSE(trial.is_of_kind());
  follow_another();
  EXPECT_TRUE(trial.is_of_kind());
  EXPECT_EQ(until_asked(600), 1); // it was made of the other kind's cycle, too
  EXPECT_EQ(until_asked(600), 20);
}

TEST_F(ATrial, WhatIsFasterForLayersSaysNothingOfTheWhole) {
  trial.note_cycle(22);
  time_making(1100);
  EXPECT_EQ(until_timed_copying(1000), 20);
  EXPECT_FALSE(trial.makes_again());
  trial.note_cycle(40); // an evaluation's
  EXPECT_FALSE(trial.makes_again());
  trial.note_cycle(kCycle);
  EXPECT_TRUE(trial.makes_again());
}

} // namespace
