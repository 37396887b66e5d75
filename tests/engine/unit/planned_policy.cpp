// Unit tests of the planned policy: what it learns of a sequence of operators,
// and what it does with that.

#include <ATen/cuda/detail/LMSCoreRangeMaximum.h>

#include "training.h"

#include <algorithm>
#include <vector>

using namespace at::cuda::lms;

namespace {

TEST(PlannedPolicy, WhatFitsDoesNotMove) {
  Machine machine(300);
  Training training(machine);
  for (int i = 0; i < 6; ++i) {
    training.iterate();
  }
  EXPECT_TRUE(machine.moved() == Moved{});
}

TEST(PlannedPolicy, TheThirdIterationFollowsThePlan) {
  for (const size_t capacity : {200, 120, 60}) {
    Machine machine(capacity);
    Training training(machine);
    training.iterate();
    training.iterate();
    const Moved third = training.iterate();
    EXPECT_TRUE(third.in > 0 && third.ahead * 10 >= third.in * 9);
    const Moved fourth = training.iterate();
    EXPECT_TRUE(fourth.in <= third.in && fourth.out <= third.out);
    EXPECT_TRUE(fourth == training.iterate());
  }
}

TEST(PlannedPolicy, NothingIsMadeAgainWhereNothingCanBe) {
  Machine machine(120);
  Training training(machine);
  for (int i = 0; i < 5; ++i) {
    training.iterate();
    EXPECT_FALSE(machine.policy().makes_again());
  }
}

TEST(PlannedPolicy, BytesAreMadeAgainWithoutAPlan) {
  Machine machine(120);
  Page* page = machine.make(4);
  Actions actions;
  Operator op;
  op.uses = {{page, /*writes=*/false, /*gain=*/9}};
  machine.policy().on_operator(op, actions);
  EXPECT_TRUE(machine.policy().makes_again());
  EXPECT_EQ(page->gain, 9);
}

TEST(PlannedPolicy, ACapacityThatIsAlikeKeepsThePlan) {
  Machine machine(120);
  Training training(machine);
  for (int i = 0; i < 5; ++i) {
    training.iterate();
  }
  const Moved steady = training.iterate();
  machine.set_capacity(126); // gathered, and taken again
  machine.set_capacity(119);
  EXPECT_TRUE(training.iterate() == steady);
  machine.set_capacity(114); // less than the plan takes: there is another one
  training.iterate();
  const Moved next = training.iterate();
  EXPECT_TRUE(next.in > steady.in && next.ahead * 10 >= next.in * 9);
}

TEST(PlannedPolicy, APlanMovesLessThanLeastRecentUse) {
  // With less that is missing, the part that plans do without weighs more.
  for (const size_t capacity : {120, 60}) {
    Machine planned(capacity);
    Machine original(capacity, "original");
    Training one(planned);
    Training other(original);
    Moved with_plan;
    Moved without;
    for (int i = 0; i < 4; ++i) {
      with_plan = one.iterate();
      without = other.iterate();
    }
    EXPECT_TRUE(with_plan.in + with_plan.out < without.in + without.out);
    EXPECT_TRUE(without.ahead == 0);
  }
}

TEST(PlannedPolicy, MostPagesAreFetchedBeforeTheyAreNeeded) {
  Machine machine(60);
  Training training(machine);
  for (int i = 0; i < 4; ++i) {
    training.iterate();
  }
  const Moved moved = training.iterate();
  EXPECT_TRUE(moved.ahead * 2 > moved.in);
}

TEST(PlannedPolicy, AnEvaluationInBetweenCostsThePlanButNothingElse) {
  Machine machine(120);
  Training training(machine);
  Moved planned;
  for (int i = 0; i < 5; ++i) {
    planned = training.iterate();
  }
  training.evaluate();
  training.iterate();
  training.iterate();
  EXPECT_TRUE(training.iterate().in <= planned.in + planned.in / 10);
}

TEST(PlannedPolicy, APlanLearnsWhatFollowsTheEndOfItsCycle) {
  // The moments are used once in a cycle, so a plan made before their second
  // use does not know that there is one.
  Machine machine(60);
  Training training(machine);
  for (int i = 0; i < 5; ++i) {
    training.iterate();
  }
  const Moved moved = training.iterate();
  EXPECT_TRUE(moved.ahead * 20 >= moved.in * 19);
}

TEST(PlannedPolicy, LayersThatAreAlikeAreOneCycleTogether) {
  Machine machine(60);
  std::vector<Page*> weights;
  for (int i = 0; i < 20; ++i) {
    weights.push_back(machine.make(4));
  }
  Moved passes[2];
  for (int i = 0; i < 6; ++i) {
    const Moved before = machine.moved();
    for (Page* weight : weights) {
      machine.run(7, {weight}, {});
    }
    passes[i % 2] = machine.moved() - before;
  }
  EXPECT_TRUE(passes[0] == passes[1]);
  EXPECT_TRUE(passes[0].in > 0 && passes[0].in <= 40); // all 80 without a plan
  EXPECT_TRUE(passes[0].ahead == passes[0].in);
}

// The weights are frozen. The optimizer of something small makes its state in
// the first iteration, which is longer for that.
TEST(PlannedPolicy, TheThirdIterationIsPlannedThoughTheFirstWasLonger) {
  Machine machine(120);
  std::vector<Page*> weights;
  for (int i = 0; i < 40; ++i) {
    weights.push_back(machine.make(4));
  }
  for (int iteration = 0; iteration < 4; ++iteration) {
    const Moved before = machine.moved();
    for (const uint64_t pass : {1, 2}) {
      for (Page* weight : weights) {
        Page* activation = machine.make(1);
        machine.run(pass, {weight}, {activation});
        machine.destroy(activation);
      }
    }
    for (uint64_t i = 0; i < (iteration == 0 ? 30 : 10); ++i) {
      Page* step = machine.make(1);
      machine.run(3 + i % 7, {}, {step});
      machine.destroy(step);
    }
    const Moved moved = machine.moved() - before;
    EXPECT_TRUE(iteration < 2 || moved.ahead * 10 >= moved.in * 9);
  }
}

TEST(PlannedPolicy, WhatRepeatsForAMomentDelaysNoPlan) {
  Machine machine(120);
  Training training(machine);
  training.iterate();
  for (const uint64_t repeated : {8, 16, 32, 39}) { // of 40 operators
    for (uint64_t i = 0; i < 40 + repeated; ++i) {
      Page* page = machine.make(1);
      machine.run(100 * repeated + i % 40, {}, {page});
      machine.destroy(page);
    }
  }
  training.iterate();
  const Moved third = training.iterate();
  EXPECT_TRUE(third.in > 0 && third.ahead * 10 >= third.in * 9);
}

TEST(PlannedPolicy, TwoModelsInTurnAreOneSequence) {
  Machine machine(200);
  Training one(machine);
  Training other(machine);
  Moved both[2];
  for (int i = 0; i < 6; ++i) {
    const Moved first = one.iterate();
    const Moved second = other.iterate();
    both[i % 2] = {
        first.in + second.in,
        first.ahead + second.ahead,
        first.out + second.out};
  }
  EXPECT_TRUE(both[0] == both[1]);
}

TEST(PlannedPolicy, ManyPagesAreFetchedAfterOneOperator) {
  Machine machine(64);
  std::vector<Page*> lists[3];
  for (auto& list : lists) {
    for (int i = 0; i < 30; ++i) {
      list.push_back(machine.make(1));
    }
  }
  Moved round;
  for (int i = 0; i < 8; ++i) {
    const Moved before = machine.moved();
    for (const auto& list : lists) {
      machine.run(8, list, {});
    }
    round = machine.moved() - before;
  }
  EXPECT_TRUE(round.in > 0 && round.ahead == round.in);
}

// Layers that are alike run in another order for once, and what the plan has in
// mind for a page that dies early is never done.
TEST(PlannedPolicy, APageThatDiesBeforeThePlanBringsItBackIsForgotten) {
  constexpr size_t kLayers = 16;
  Machine machine(100);
  for (int step = 0; step < 12; ++step) {
    std::vector<Page*> activations;
    for (size_t layer = 0; layer < kLayers; ++layer) {
      activations.push_back(machine.make(10));
      machine.run(1, {}, {activations.back()});
    }
    machine.run(2, {}, {activations.back()});
    if (step != 10) {
      std::reverse(activations.begin(), activations.end());
    }
    for (Page* page : activations) {
      machine.run(3, {page}, {});
      machine.destroy(page);
    }
  }
  EXPECT_TRUE(machine.moved().ahead > 0);
}

TEST(PlannedPolicy, RangesOnACircle) {
  RangeMaximum values({5, 1, 4, 2});
  EXPECT_TRUE(values.maximum(1, 1) == 1);
  EXPECT_TRUE(values.maximum(3, 2) == 5); // around the end
  values.add(3, 3, 10); // positions 3, 0 and 1
  EXPECT_TRUE(values.maximum(0, 4) == 15);
  EXPECT_TRUE(values.maximum(1, 2) == 11);
  EXPECT_TRUE(values.maximum(7, 1) == 12); // 7 is 3
  RangeMaximum one({3});
  one.add(5, 1, -1);
  EXPECT_TRUE(one.maximum(0, 1) == 2);
}

} // namespace
