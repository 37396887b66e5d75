// Unit tests of the planned policy with cycles that are longer than what the
// history always keeps, and of how their plans are made.

#include <ATen/cuda/detail/LMSCorePlannedPolicy.h>

#include <gtest/gtest.h>
#include "machine.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

using namespace at::cuda::lms;

namespace {

// Runs operators without a limit of memory, and notes what the policy does.
class Driver {
 public:
  explicit Driver(size_t capacity) {
    policy.set_capacity(capacity);
    policy.choose_window({}, {}); // memory is short
  }
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;
  ~Driver() = default;

  Page* make(size_t bytes) {
    Page& page = pages_.emplace_back();
    page.id = pages_.size();
    page.bytes = bytes;
    page.resident = page.evictable = true;
    return &page;
  }

  void run(uint64_t name, const std::vector<Page*>& pages) {
    ++now;
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
    if (actions.draft) {
      finish(std::move(actions.draft));
    }
  }

  PlannedPolicy policy;
  uint64_t now = 0; // operators
  uint64_t demanded = 0; // pages that nobody had fetched
  std::vector<uint64_t> drafts; // the operators that they began with
  uint64_t most_work = 0; // at once, under the lock
  // The operator and a page's id, in order.
  std::vector<std::pair<uint64_t, uint64_t>> choices;
  std::function<void()> between_parts = [] {};
  std::function<void()> after_draft = [] {};

 private:
  void finish(const std::shared_ptr<Draft>& draft) {
    drafts.push_back(now);
    Actions actions;
    bool goes_on = true;
    while (goes_on) {
      draft->compute();
      between_parts();
      actions.evict.clear();
      const uint64_t before = policy.planning_work();
      goes_on = policy.advance(*draft, actions);
      note_work(before);
      obey(actions);
    }
    after_draft();
  }

  void note_work(uint64_t before) {
    most_work = std::max(most_work, policy.planning_work() - before);
  }

  void obey(const Actions& actions) {
    for (Page* page : actions.evict) {
      page->resident = false;
      choices.emplace_back(now, page->id);
    }
    for (Page* page : actions.fetch) {
      page->resident = true;
      choices.emplace_back(now, page->id);
    }
  }

  std::deque<Page> pages_;
};

// The steps of an optimizer, each after many micro-batches: all but the moments
// fits, which the optimizer alone uses.
class Accumulation : public Driver {
 public:
  // Of 30 pages, and one of activations.
  explicit Accumulation(uint64_t micro_batches)
      : Driver(26 * kBytes), micro_batches_(micro_batches) {
    for (uint64_t i = 0; i < kLayers; ++i) {
      weights_.push_back(make(kBytes));
      gradients_.push_back(make(kBytes));
      moments_.push_back(make(kBytes));
    }
  }

  void step() {
    demanded = 0;
    do {
      run_next();
    } while (position_ > 0);
  }

  // The next operator.
  void run_next() {
    const uint64_t layer = position_ % kLayers;
    const bool is_update = position_ / kLayers == micro_batches_;
    position_ = (position_ + 1) % length();
    if (is_update) {
      run(2, {gradients_[layer], weights_[layer], moments_[layer]});
    } else {
      run(1, {weights_[layer], gradients_[layer]});
    }
  }

  // A weight and a moment die, and others have their parts.
  void replace_pages() {
    for (Page** page : {&weights_[3], &moments_[5]}) {
      policy.on_death(*page, /*gain=*/0);
      *page = make(kBytes);
    }
  }

  uint64_t length() const {
    return (micro_batches_ + 1) * kLayers;
  }

 private:
  static constexpr uint64_t kLayers = 10;
  static constexpr size_t kBytes = 1 << 20;

  uint64_t micro_batches_;
  uint64_t position_ = 0; // of the next operator
  std::vector<Page*> weights_;
  std::vector<Page*> gradients_;
  std::vector<Page*> moments_;
};

constexpr uint64_t kManyMicroBatches = 20'000; // of ten operators each

TEST(LongCycles, ManyMicroBatchesAndAStepAreOneCycle) {
  Accumulation training(kManyMicroBatches);
  EXPECT_TRUE(training.length() > History::kAlways);
  for (int step = 0; step < 5; ++step) {
    training.step();
  }
  EXPECT_TRUE(training.policy.history().lag() == training.length());
  EXPECT_TRUE(!training.choices.empty()); // something moves
  EXPECT_TRUE(training.demanded == 0);
  EXPECT_TRUE(training.policy.history().bytes() < History::kMostBytes);
}

TEST(LongCycles, WhatIsKeptShrinksWithoutALongCycle) {
  Accumulation training(kManyMicroBatches);
  Page other;
  other.id = 1'000;
  other.bytes = 1;
  other.resident = true;
  for (int step = 0; step < 3; ++step) {
    training.step();
  }
  const size_t kept = training.policy.history().bytes();
  EXPECT_TRUE(training.policy.history().has(
      training.policy.history().now() - training.length()));
  for (uint64_t i = 0; i < 3 * training.length(); ++i) {
    training.run(3, {&other});
  }
  EXPECT_TRUE(training.policy.history().bytes() < kept);
  EXPECT_TRUE(training.policy.history().has(
      training.policy.history().now() - History::kAlways + 1));
  EXPECT_TRUE(!training.policy.history().has(
      training.policy.history().now() - History::kAlways - 1));
  training.policy.on_death(&other, /*gain=*/0);
}

constexpr uint64_t kMostWork = 1 << 13; // steps

TEST(LongCycles, NoOperatorDoesMoreThanAPartOfThePlanning) {
  Accumulation training(kManyMicroBatches);
  for (int step = 0; step < 5; ++step) {
    training.step();
  }
  EXPECT_TRUE(!training.drafts.empty());
  EXPECT_TRUE(training.most_work > 0 && training.most_work <= kMostWork);
}

// After one operator there is room for thousands of pages again.
TEST(LongCycles, NoOperatorAsksForThousandsOfPages) {
  constexpr uint64_t kPages = 20'000;
  Driver driver(kPages * 3 / 2);
  std::vector<Page*> pages;
  for (uint64_t i = 0; i < kPages; ++i) {
    pages.push_back(driver.make(1));
  }
  for (int step = 0; step < 5; ++step) {
    driver.demanded = 0;
    for (Page* page : pages) {
      driver.run(1, {page});
    }
    Page* large = driver.make(kPages * 5 / 4);
    driver.run(2, {large});
    driver.policy.on_death(large, /*gain=*/0);
  }
  EXPECT_TRUE(!driver.drafts.empty());
  EXPECT_TRUE(driver.choices.size() > kPages);
  EXPECT_TRUE(driver.demanded == 0);
  EXPECT_TRUE(driver.most_work > 0 && driver.most_work <= kMostWork);
}

// However many there are besides, the plan is made at once.
TEST(LongCycles, PagesOutsideOfAShortCycleMakeNoWork) {
  Driver driver(1'000);
  for (uint64_t i = 0; i < 20'000; ++i) {
    driver.run(1, {driver.make(1)});
  }
  const std::vector<Page*> pages{driver.make(600), driver.make(600)};
  for (uint64_t i = 0; i < 100; ++i) {
    driver.run(2, {pages[i % 2]});
  }
  EXPECT_TRUE(!driver.choices.empty());
  EXPECT_TRUE(driver.most_work > 0 && driver.most_work <= kMostWork);
}

// Other threads' operators come between the parts, and pages come and go. The
// plan is that of the operator it was begun with.
TEST(LongCycles, APlanIsTheSameWhateverComesMeanwhile) {
  Accumulation alone(kManyMicroBatches);
  alone.after_draft = [&] { alone.replace_pages(); };
  Accumulation disturbed(kManyMicroBatches);
  uint64_t parts = 0;
  disturbed.between_parts = [&] {
    if (parts++ == 0) {
      disturbed.replace_pages();
    }
    disturbed.run_next();
  };
  disturbed.after_draft = [&] { parts = 0; };
  for (int step = 0; step < 5; ++step) {
    alone.step();
    disturbed.step();
  }
  EXPECT_TRUE(disturbed.drafts == alone.drafts && !alone.drafts.empty());
  // Once all has been done that the plan came too late for.
  const uint64_t begin = alone.drafts.front() + alone.length() / 2;
  const auto since = [begin](const Driver& driver) {
    auto choices = driver.choices;
    choices.erase(
        choices.begin(),
        std::lower_bound(
            choices.begin(), choices.end(), std::pair(begin, uint64_t{0})));
    return choices;
  };
  EXPECT_TRUE(!since(alone).empty());
  EXPECT_TRUE(since(alone) == since(disturbed));
}

TEST(LongCycles, ADraftOfASequenceThatHasEndedIsDropped) {
  Accumulation training(kManyMicroBatches);
  Page other;
  other.id = 1'000;
  other.bytes = 1;
  other.resident = true;
  uint64_t ended = 0;
  training.between_parts = [&] {
    if (++ended == 4) {
      training.run(3, {&other});
    }
  };
  for (int step = 0; step < 4; ++step) {
    training.step();
  }
  EXPECT_TRUE(ended >= 4);
  const size_t drafts = training.drafts.size();
  for (int step = 0; step < 3; ++step) {
    training.step();
  }
  EXPECT_TRUE(training.drafts.size() > drafts);
  EXPECT_TRUE(training.demanded == 0);
  training.policy.on_death(&other, /*gain=*/0);
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

TEST(LongCycles, WhatComesLongBeforeItsUseTakesNobodysRoom) {
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
  EXPECT_TRUE(moved.ahead >= 30); // the moments
  EXPECT_TRUE(moved.in < kMicroBatches * 8 / 5);
}

// The history is bounded in bytes: an operator may use thousands of pages.
TEST(LongCycles, AHistoryOfLongListsIsBounded) {
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
  EXPECT_TRUE(policy.history().bytes() <= History::kMostBytes);
  EXPECT_TRUE(policy.history().has(policy.history().now() - 100));
}

} // namespace
