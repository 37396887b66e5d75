// Unit tests of the planned policy with cycles that are longer than what the
// history always keeps, and of how their plans are made.

#include <ATen/cuda/detail/LMSPlannedPolicy.h>

#include "harness.h"
#include "machine.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

using namespace at::cuda::lms;

namespace {

// The steps of an optimizer, each after many micro-batches: all but the moments
// fits, which the optimizer alone uses.
class Accumulation {
 public:
  explicit Accumulation(uint64_t micro_batches)
      : micro_batches_(micro_batches) {
    for (uint64_t i = 0; i < kLayers; ++i) {
      weights_.push_back(make());
      gradients_.push_back(make());
      moments_.push_back(make());
    }
    policy.set_capacity(26 * kBytes); // of 30 pages, and one of activations
    policy.choose_window({}, {}); // memory is short
  }
  Accumulation(const Accumulation&) = delete;
  Accumulation& operator=(const Accumulation&) = delete;
  ~Accumulation() = default;

  void step() {
    demanded = 0;
    for (uint64_t i = 0; i < micro_batches_; ++i) {
      for (uint64_t layer = 0; layer < kLayers; ++layer) {
        run(1, {weights_[layer], gradients_[layer]});
      }
    }
    for (uint64_t layer = 0; layer < kLayers; ++layer) {
      run(2, {gradients_[layer], weights_[layer], moments_[layer]});
    }
  }

  void run(uint64_t name, const std::vector<Page*>& pages) {
    Operator op;
    op.name = name;
    for (Page* page : pages) {
      demanded += page->resident ? 0 : 1;
      page->resident = true;
      op.uses.push_back({page, true});
    }
    Actions actions;
    const uint64_t before = policy.planning_work();
    policy.on_operator(op, actions);
    note_work(before);
    obey(actions);
    const std::shared_ptr<Draft> draft = std::move(actions.draft);
    drafts += draft ? 1 : 0;
    bool goes_on = draft != nullptr;
    while (goes_on) {
      draft->compute();
      between_parts(*this);
      actions.evict.clear();
      const uint64_t before = policy.planning_work();
      goes_on = policy.advance(*draft, actions);
      note_work(before);
      obey(actions);
    }
  }

  uint64_t length() const {
    return (micro_batches_ + 1) * kLayers;
  }
  Page* moment(uint64_t layer) {
    return moments_[layer];
  }

  static constexpr uint64_t kLayers = 10;
  PlannedPolicy policy;
  uint64_t demanded = 0; // pages of this step that nobody had fetched
  uint64_t drafts = 0;
  uint64_t most_work = 0; // at once, under the lock
  std::vector<uint64_t> choices; // ids of pages, in order
  std::function<void(Accumulation&)> between_parts = [](Accumulation&) {};

 private:
  static constexpr size_t kBytes = 1 << 20;

  Page* make() {
    Page& page = pages_.emplace_back();
    page.id = pages_.size();
    page.bytes = kBytes;
    page.resident = page.evictable = true;
    return &page;
  }

  void note_work(uint64_t before) {
    most_work = std::max(most_work, policy.planning_work() - before);
  }

  void obey(const Actions& actions) {
    for (Page* page : actions.evict) {
      page->resident = false;
      choices.push_back(page->id);
    }
    for (Page* page : actions.fetch) {
      page->resident = true;
      choices.push_back(page->id);
    }
  }

  uint64_t micro_batches_;
  std::deque<Page> pages_;
  std::vector<Page*> weights_;
  std::vector<Page*> gradients_;
  std::vector<Page*> moments_;
};

constexpr uint64_t kManyMicroBatches = 20'000; // of ten operators each

TEST(ManyMicroBatchesAndAStepAreOneCycle) {
  Accumulation training(kManyMicroBatches);
  EXPECT(training.length() > History::kAlways);
  for (int step = 0; step < 5; ++step) {
    training.step();
  }
  EXPECT(training.policy.history().lag() == training.length());
  EXPECT(!training.choices.empty()); // something moves
  EXPECT(training.demanded == 0);
  EXPECT(training.policy.history().bytes() < History::kMostBytes);
}

TEST(WhatIsKeptShrinksWithoutALongCycle) {
  Accumulation training(kManyMicroBatches);
  Page other;
  other.id = 1'000;
  other.bytes = 1;
  other.resident = true;
  for (int step = 0; step < 3; ++step) {
    training.step();
  }
  const size_t kept = training.policy.history().bytes();
  EXPECT(training.policy.history().has(
      training.policy.history().now() - training.length()));
  for (uint64_t i = 0; i < 3 * training.length(); ++i) {
    training.run(3, {&other});
  }
  EXPECT(training.policy.history().bytes() < kept);
  EXPECT(training.policy.history().has(
      training.policy.history().now() - History::kAlways + 1));
  EXPECT(!training.policy.history().has(
      training.policy.history().now() - History::kAlways - 1));
  training.policy.on_death(&other);
}

TEST(NoOperatorDoesMoreThanAPartOfThePlanning) {
  Accumulation training(kManyMicroBatches);
  for (int step = 0; step < 5; ++step) {
    training.step();
  }
  EXPECT(training.drafts > 0);
  EXPECT(training.most_work > 0 && training.most_work <= 1 << 14);
}

// Other threads' operators come between the parts. The plan is that of the
// operator it was begun with.
TEST(APlanIsTheSameWhateverComesMeanwhile) {
  Accumulation alone(kManyMicroBatches);
  Accumulation disturbed(kManyMicroBatches);
  uint64_t dead = 0;
  disturbed.between_parts = [&dead](Accumulation& training) {
    Page page; // never used, so it is none of the sequence
    training.policy.on_death(&page);
    ++dead;
  };
  for (int step = 0; step < 5; ++step) {
    alone.step();
    disturbed.step();
  }
  EXPECT(dead > 10);
  EXPECT(alone.choices == disturbed.choices);
}

TEST(ADraftOfASequenceThatHasEndedIsDropped) {
  Accumulation training(kManyMicroBatches);
  Page other;
  other.id = 1'000;
  other.bytes = 1;
  other.resident = true;
  uint64_t ended = 0;
  training.between_parts = [&](Accumulation& all) {
    if (++ended == 4) {
      all.run(3, {&other});
    }
  };
  for (int step = 0; step < 4; ++step) {
    training.step();
  }
  EXPECT(ended >= 4);
  const uint64_t drafts = training.drafts;
  for (int step = 0; step < 3; ++step) {
    training.step();
  }
  EXPECT(training.drafts > drafts);
  EXPECT(training.demanded == 0);
  training.policy.on_death(&other);
}

// A micro-batch of four layers just fits, and less one activation it would fit
// beside one of the moments.
void run_micro_batch(Machine& machine, const std::vector<Page*>& weights) {
  std::vector<Page*> activations;
  for (Page* weight : weights) {
    activations.push_back(machine.make(8));
    machine.run(1, {weight}, {activations.back()});
  }
  for (size_t i = weights.size(); i > 0; --i) {
    machine.run(2, {activations[i - 1]}, {weights[i - 1]});
    machine.destroy(activations[i - 1]);
  }
}

TEST(WhatComesLongBeforeItsUseTakesNobodysRoom) {
  constexpr uint64_t kMicroBatches = 4'000; // 32,000 operators
  Machine machine(71); // 70 for the plan, 62 without a typical page
  std::vector<Page*> weights;
  std::vector<Page*> moments;
  for (int layer = 0; layer < 4; ++layer) {
    weights.push_back(machine.make(8));
    moments.push_back(machine.make(10));
  }
  Moved before;
  for (int step = 0; step < 5; ++step) {
    before = machine.moved();
    for (uint64_t i = 0; i < kMicroBatches; ++i) {
      run_micro_batch(machine, weights);
    }
    for (size_t layer = 0; layer < weights.size(); ++layer) {
      machine.run(3, {moments[layer]}, {weights[layer]});
    }
  }
  const Moved moved = machine.moved() - before;
  EXPECT(moved.ahead >= 30); // the moments
  EXPECT(moved.in < kMicroBatches * 8 / 5);
}

// The history is bounded in bytes: an operator may use thousands of pages.
TEST(AHistoryOfLongListsIsBounded) {
  PlannedPolicy policy;
  std::deque<Page> pages(20'000);
  Operator op;
  for (Page& page : pages) {
    page.bytes = 1;
    page.id = op.uses.size() + 1;
    op.uses.push_back({&page, false});
  }
  for (int i = 0; i < 500; ++i) {
    Actions actions;
    policy.on_operator(op, actions);
  }
  EXPECT(policy.history().bytes() <= History::kMostBytes);
  EXPECT(policy.history().has(policy.history().now() - 100));
}

} // namespace

int main() {
  return run_tests();
}
