// Unit tests of jobs that take turns on a device.

#include "training.h"

#include <algorithm>
#include <cstdint>
#include <vector>

using namespace at::cuda::lms;

namespace {

// Two trainings on a device that is too small for each of them.
class Jobs : public testing::Test {
 protected:
  // Iterations of one of them, in its turn. The traffic of the last.
  Moved take_turn(uint64_t job, int iterations) {
    machine.begin_turn(job);
    Moved last;
    for (int i = 0; i < iterations; ++i) {
      last = trainings[job - 1].iterate();
    }
    return last;
  }
  // The same, and the last iteration is announced.
  Moved take_announced_turn(uint64_t job, uint64_t next, int iterations) {
    (void)take_turn(job, iterations - 1);
    machine.policy().announce_turn(next);
    return trainings[job - 1].iterate();
  }

  Machine machine{200};
  std::vector<Training> trainings{Training(machine), Training(machine)};
};

TEST_F(Jobs, APlanHoldsThroughTheTurnOfAnother) {
  const Moved alone = take_turn(1, 8);
  EXPECT_GT(alone.ahead, 0u);
  const Moved other = take_turn(2, 8);
  EXPECT_GT(take_turn(1, 1).in, alone.in); // what the other one drove out
  EXPECT_EQ(take_turn(1, 1).ahead, alone.ahead);
  EXPECT_TRUE(take_turn(1, 1) == alone);
  EXPECT_TRUE(take_turn(2, 3) == other);
}

TEST_F(Jobs, WithoutJobsBothAreLearnedAnew) {
  const auto iterate = [this](int which, int times) {
    Moved last;
    for (int i = 0; i < times; ++i) {
      last = trainings[which].iterate();
    }
    return last;
  };
  const Moved alone = iterate(0, 8);
  (void)iterate(1, 8);
  EXPECT_FALSE(iterate(0, 2) == alone);
}

TEST_F(Jobs, TheNextOneComesInTheLastIterationOfATurn) {
  for (int i = 0; i < 2; ++i) {
    (void)take_turn(1, 8);
    (void)take_turn(2, 8);
  }
  const Moved unannounced = take_turn(1, 1);
  for (int i = 0; i < 2; ++i) {
    (void)take_announced_turn(1, 2, 8);
    (void)take_announced_turn(2, 1, 8);
  }
  const Moved first = take_turn(1, 1);
  const Moved usual = take_turn(1, 1);
  const Moved last = take_announced_turn(1, 2, 2);
  EXPECT_GT(last.out, usual.out); // what this job has no use for
  EXPECT_GT(last.ahead, usual.ahead); // what the next one has
  EXPECT_LT(first.in, unannounced.in);
}

TEST_F(Jobs, PagesOfAJobThatHasEndedAreNobodys) {
  machine.begin_turn(1);
  std::vector<Page*> pages;
  for (int i = 0; i < 4; ++i) {
    pages.push_back(machine.make(2));
    machine.run(1, {}, {pages.back()});
  }
  EXPECT_EQ(pages[0]->job, 1u);
  machine.begin_turn(2);
  machine.run(2, {pages[3]}, {});
  EXPECT_EQ(pages[3]->job, 2u);
  machine.policy().end_job(1);
  EXPECT_EQ(pages[0]->job, 0u);
  EXPECT_EQ(pages[0]->next_use, Page::kNever);
  machine.run(3, {pages[0], pages[3]}, {});
  EXPECT_EQ(pages[0]->job, 2u);
  machine.policy().end_job(2); // in its turn
  machine.policy().end_job(7); // which never was
  for (Page* page : pages) {
    EXPECT_EQ(page->job, 0u);
    machine.destroy(page);
  }
}

} // namespace
