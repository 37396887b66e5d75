#pragma once

#include <ATen/cuda/detail/LMSCorePolicy.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <vector>

// A device that is a number of bytes, for tests of policies.

namespace at::cuda::lms {

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
      : capacity_(capacity), policy_(find_policy(policy)->make()) {
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
    policy_->on_death(page, /*gain=*/0);
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

  // Only where jobs take turns.
  void begin_turn(uint64_t job) {
    job_ = job;
    policy_->begin_turn(job);
  }

  // As where memory is gathered: it has another size then.
  void set_capacity(size_t capacity) {
    capacity_ = capacity;
    policy_->set_capacity(capacity);
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
    EXPECT_TRUE(found != alive_.end()); // the policy names no page that is dead
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

  // What other jobs have goes first.
  Page* worst() {
    const auto rank = [this](const Page& page) {
      return std::make_tuple(
          page.job != job_, page.next_use, Page::kNever - page.last_use);
    };
    Page* worst = nullptr;
    for (const auto& page : alive_) {
      if (page->resident && page->evictable &&
          (!worst || rank(*page) > rank(*worst))) {
        worst = page.get();
      }
    }
    return worst;
  }

  void follow(const Operator& op) {
    Actions actions;
    policy_->on_operator(op, actions);
    finish_draft(*policy_, actions);
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
  uint64_t job_ = 0;
  uint64_t last_id_ = 0;
  Moved moved_;
  Pages alive_;
  std::unique_ptr<Policy> policy_;
};

} // namespace at::cuda::lms
