// Unit tests of the planned policy: what it learns of a sequence of operators,
// and what it does with that, on a device that is a number of bytes.

#include <ATen/cuda/detail/LMSPolicy.h>
#include <ATen/cuda/detail/LMSRangeMaximum.h>

#include "harness.h"

#include <algorithm>
#include <memory>
#include <set>
#include <vector>

using namespace at::cuda::lms;

namespace {

// Traffic of a stretch of operators, bytes.
struct Moved {
  size_t in = 0;
  size_t ahead = 0; // the part of `in` that no operator asked for
  size_t out = 0;

  Moved operator-(const Moved& before) const {
    return {in - before.in, ahead - before.ahead, out - before.out};
  }
  bool operator==(const Moved& other) const {
    return in == other.in && ahead == other.ahead && out == other.out;
  }
};

// Runs operators as the engine does, on `capacity` bytes without fragments.
class Machine {
 public:
  explicit Machine(size_t capacity, const char* policy = "planned")
      : capacity_(capacity), policy_(make_policy(policy)) {
    policy_->set_capacity(capacity);
  }

  Page* make(size_t bytes) {
    auto& page = alive_.emplace_back(std::make_unique<Page>());
    page->id = ++last_id_;
    page->bytes = bytes;
    page->resident = page->evictable = true;
    used_ += bytes;
    return page.get();
  }

  void destroy(Page* page) {
    policy_->on_death(page);
    used_ -= page->resident ? page->bytes : 0;
    alive_.erase(find(page));
  }

  void run(
      uint64_t name,
      const std::vector<Page*>& reads,
      const std::vector<Page*>& writes) {
    Operator op;
    op.name = name;
    for (Page* page : reads) {
      op.uses.push_back({page, false});
    }
    for (Page* page : writes) {
      op.uses.push_back({page, true});
    }
    for (const Use& use : op.uses) {
      use.page->evictable = false;
      bring(use.page);
    }
    if (used_ > capacity_) {
      policy_->choose_window({}, {}); // there is no contiguous room
    }
    while (used_ > capacity_) {
      evict(worst());
    }
    for (const Use& use : op.uses) {
      use.page->evictable = true;
    }
    follow(op);
  }

  const Moved& moved() const {
    return moved_;
  }
  Policy& policy() {
    return *policy_;
  }

 private:
  using Pages = std::vector<std::unique_ptr<Page>>;

  Pages::iterator find(Page* page) {
    const auto found =
        std::find_if(alive_.begin(), alive_.end(), [&](const auto& alive) {
          return alive.get() == page;
        });
    EXPECT(found != alive_.end()); // the policy names no page that is dead
    return found;
  }

  void bring(Page* page) {
    if (!page->resident) {
      page->resident = true;
      used_ += page->bytes;
      moved_.in += page->bytes;
    }
  }

  void evict(Page* page) {
    page->resident = false;
    used_ -= page->bytes;
    moved_.out += page->bytes;
  }

  Page* worst() {
    Page* worst = nullptr;
    for (const auto& page : alive_) {
      if (page->resident && page->evictable &&
          (!worst || page->next_use > worst->next_use ||
           (page->next_use == worst->next_use &&
            page->last_use < worst->last_use))) {
        worst = page.get();
      }
    }
    return worst;
  }

  void follow(const Operator& op) {
    Actions actions;
    policy_->on_operator(op, actions);
    for (Page* page : actions.evict) {
      find(page);
      evict(page);
    }
    for (Page* page : actions.fetch) {
      find(page);
      if (used_ + page->bytes > capacity_) {
        return;
      }
      bring(page);
      moved_.ahead += page->bytes;
    }
  }

  size_t capacity_;
  size_t used_ = 0;
  uint64_t last_id_ = 0;
  Moved moved_;
  Pages alive_;
  std::unique_ptr<Policy> policy_;
};

// A model of equal layers, trained with an optimizer that keeps one number per
// parameter: 160 bytes of state, and up to 82 of activations or gradients.
class Training {
 public:
  explicit Training(Machine& machine) : machine_(machine) {
    for (int i = 0; i < kLayers; ++i) {
      weights_.push_back(machine.make(4));
      moments_.push_back(machine.make(4));
    }
  }

  // The traffic of one iteration.
  Moved iterate() {
    const Moved before = machine_.moved();
    std::vector<Page*> activations{made(1, {}, 2)};
    for (Page* weight : weights_) {
      activations.push_back(made(2, {activations.back(), weight}, 2));
    }
    std::vector<Page*> gradients(kLayers);
    Page* gradient = made(3, {activations.back()}, 2);
    for (int i = kLayers - 1; i >= 0; --i) {
      Page* next = machine_.make(2);
      gradients[i] = machine_.make(4);
      machine_.run(
          4, {gradient, activations[i], weights_[i]}, {next, gradients[i]});
      machine_.destroy(gradient);
      machine_.destroy(activations[i + 1]);
      gradient = next;
    }
    machine_.destroy(gradient);
    machine_.destroy(activations[0]);
    for (int i = 0; i < kLayers; ++i) {
      machine_.run(5, {gradients[i]}, {weights_[i], moments_[i]});
      machine_.destroy(gradients[i]);
    }
    return machine_.moved() - before;
  }

  void evaluate() {
    Page* activation = made(1, {}, 2);
    for (Page* weight : weights_) {
      Page* next = made(6, {activation, weight}, 2);
      machine_.destroy(activation);
      activation = next;
    }
    machine_.destroy(activation);
  }

 private:
  static constexpr int kLayers = 20;

  Page* made(uint64_t name, const std::vector<Page*>& reads, size_t bytes) {
    Page* page = machine_.make(bytes);
    machine_.run(name, reads, {page});
    return page;
  }

  Machine& machine_;
  std::vector<Page*> weights_;
  std::vector<Page*> moments_;
};

TEST(WhatFitsDoesNotMove) {
  Machine machine(300);
  Training training(machine);
  for (int i = 0; i < 6; ++i) {
    training.iterate();
  }
  EXPECT(machine.moved() == Moved{});
}

TEST(TheThirdIterationFollowsThePlan) {
  for (const size_t capacity : {200, 120, 60}) {
    Machine machine(capacity);
    Training training(machine);
    training.iterate();
    training.iterate();
    const Moved third = training.iterate();
    EXPECT(third.in > 0 && third.ahead * 10 >= third.in * 9);
    const Moved fourth = training.iterate();
    EXPECT(fourth.in <= third.in && fourth.out <= third.out);
    EXPECT(fourth == training.iterate());
  }
}

TEST(APlanMovesLessThanLeastRecentUse) {
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
    EXPECT(with_plan.in + with_plan.out < without.in + without.out);
    EXPECT(without.ahead == 0);
  }
}

TEST(MostPagesAreFetchedBeforeTheyAreNeeded) {
  Machine machine(60);
  Training training(machine);
  for (int i = 0; i < 4; ++i) {
    training.iterate();
  }
  const Moved moved = training.iterate();
  EXPECT(moved.ahead * 2 > moved.in);
}

TEST(AnEvaluationInBetweenCostsThePlanButNothingElse) {
  Machine machine(120);
  Training training(machine);
  Moved planned;
  for (int i = 0; i < 5; ++i) {
    planned = training.iterate();
  }
  training.evaluate();
  training.iterate();
  training.iterate();
  EXPECT(training.iterate().in <= planned.in + planned.in / 10);
}

TEST(APlanLearnsWhatFollowsTheEndOfItsCycle) {
  // The moments are used once in a cycle, so a plan made before their second
  // use does not know that there is one.
  Machine machine(60);
  Training training(machine);
  for (int i = 0; i < 5; ++i) {
    training.iterate();
  }
  const Moved moved = training.iterate();
  EXPECT(moved.ahead * 20 >= moved.in * 19);
}

TEST(LayersThatAreAlikeAreOneCycleTogether) {
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
  EXPECT(passes[0] == passes[1]);
  EXPECT(passes[0].in > 0 && passes[0].in <= 40); // all 80 without a plan
  EXPECT(passes[0].ahead == passes[0].in);
}

TEST(TwoModelsInTurnAreOneSequence) {
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
  EXPECT(both[0] == both[1]);
}

TEST(ManyPagesAreFetchedAfterOneOperator) {
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
  EXPECT(round.in > 0 && round.ahead == round.in);
}

// A machine that follows a plan: layers of 4 bytes are used in turn.
struct Turns {
  Machine machine;
  std::vector<Page*> layers;
  size_t next = 0;

  explicit Turns(size_t count) : machine(3 * count) {
    for (size_t i = 0; i < count; ++i) {
      layers.push_back(machine.make(4));
    }
    for (size_t i = 0; i < 5 * count; ++i) {
      run();
    }
  }
  void run() {
    machine.run(7, {layers[next]}, {});
    next = (next + 1) % layers.size();
  }
  // What the policy wants after the next use; nothing is done.
  Actions ask() {
    Page* page = layers[next];
    page->resident = page->evictable = true;
    next = (next + 1) % layers.size();
    Operator op;
    op.name = 7;
    op.uses = {{page, false}};
    Actions actions;
    machine.policy().on_operator(op, actions);
    return actions;
  }
  // What is chosen where there is nothing but the page's memory.
  std::vector<Page*> window(Page* only, const Page* ahead) {
    Layout layout;
    Segment segment;
    segment.size = kMinBlockSize;
    layout.add_segment(kMinBlockSize, segment);
    layout.add_block(kMinBlockSize, kMinBlockSize);
    layout.find(kMinBlockSize).second->page = only;
    Request request{kMinBlockSize, 0};
    request.ahead = ahead;
    return machine.policy().choose_window(layout, request);
  }
};

TEST(AFetchEvictsOnlyWhatComesBackMuchLater) {
  Turns turns(20);
  const auto away = std::partition(
      turns.layers.begin(), turns.layers.end(), [](const Page* page) {
        return page->resident;
      });
  EXPECT(away != turns.layers.begin() && away != turns.layers.end());
  for (auto stays = turns.layers.begin(); stays != away; ++stays) {
    EXPECT((*stays)->next_use != Page::kNever);
    for (auto comes = away; comes != turns.layers.end(); ++comes) {
      const bool is_later = (*stays)->next_use > (*comes)->next_use + 20 / 4;
      EXPECT(turns.window(*stays, *comes).empty() == !is_later);
    }
    EXPECT((turns.window(*stays, nullptr) == std::vector<Page*>{*stays}));
  }
}

TEST(WhatIsEvictedIsNotAskedForAgainAtOnce) {
  Turns turns(20);
  Page* page = nullptr;
  for (int i = 0; i < 20 && !page; ++i) {
    const Actions wanted = turns.ask();
    page = wanted.fetch.empty() ? nullptr : wanted.fetch.back();
  }
  EXPECT(page && page->is_awaited);
  if (page) {
    page->resident = page->evictable = true;
    EXPECT((turns.window(page, nullptr) == std::vector<Page*>{page}));
    EXPECT(!page->is_awaited);
  }
}

TEST(RangesOnACircle) {
  RangeMaximum values({5, 1, 4, 2});
  EXPECT(values.maximum(1, 1) == 1);
  EXPECT(values.maximum(3, 2) == 5); // around the end
  values.add(3, 3, 10); // positions 3, 0 and 1
  EXPECT(values.maximum(0, 4) == 15);
  EXPECT(values.maximum(1, 2) == 11);
  EXPECT(values.maximum(7, 1) == 12); // 7 is 3
  RangeMaximum one({3});
  one.add(5, 1, -1);
  EXPECT(one.maximum(0, 1) == 2);
}

} // namespace

int main() {
  return run_tests();
}
