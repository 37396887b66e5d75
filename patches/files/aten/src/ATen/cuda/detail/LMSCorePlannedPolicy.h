#pragma once

#include <ATen/cuda/detail/LMSCoreCycle.h>
#include <ATen/cuda/detail/LMSCoreHistory.h>
#include <ATen/cuda/detail/LMSCorePlan.h>
#include <ATen/cuda/detail/LMSCorePolicy.h>
#include <ATen/cuda/detail/LMSCoreSpace.h>
#include <ATen/cuda/detail/LMSCoreTrial.h>
#include <ATen/cuda/detail/LMSCoreWishes.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace at::cuda::lms {

// Note [Making a plan]
// ~~~~~~~~~~~~~~~~~~~~
// A plan takes about a microsecond for each operator of its cycle, and more
// where that is long. So it is made by way of a draft: the cycle is read from
// the history, the plan computed, and the pages that are idle are told what the
// plan has in mind for them. Only the first and the last need the policy, and
// do a bounded part of their work at a time. The thread whose operator it is
// due with does all of it before it goes on, and between the parts gives up the
// device's lock: other threads may run operators meanwhile, and where these end
// the sequence the draft is out of date. The plan is that of the operator it
// was begun with, so what it chooses does not depend on how long it takes.
// That of a short cycle is made at once.

// What a policy asks about the pages of other jobs.
class OtherJobs {
 public:
  virtual ~OtherJobs() = default;
  // Operators until the page is needed; kFar if it is not in this turn, nor
  // soon after.
  static constexpr uint64_t kFar = Page::kNever >> 1;
  virtual uint64_t distance_to(const Page& page) const = 0;
  // It has to make room.
  virtual void note_driven_out(Page& page) = 0;
};

// Follows the plan of a cycle while the sequence repeats. What the plan did not
// foresee, and everything while there is none, is evicted by farthest next use
// as far as that is known, and by least recent use otherwise. It is that of one
// job, or of all if none has a number; see Note [Jobs].
class PlannedPolicy final : public Policy, private Ranking {
 public:
  PlannedPolicy() = default;
  PlannedPolicy(uint64_t job, OtherJobs& others)
      : job_(job), others_(&others) {}

  void set_capacity(size_t bytes) override;
  void on_operator(const Operator& op, Actions& actions) override;
  bool advance(Draft& draft, Actions& actions) override;
  bool makes_again() const override {
    return trial_.makes_again() && (plan_ ? plan_->gains() : gains_) > 0;
  }
  void note_source(Page& page, uint64_t makes_at) override;
  void note_hint(Page& page, Hint hint) override;
  void on_death(Page* page, uint8_t gain) override;
  std::vector<Page*> choose_window(const Layout& layout, const Request& request)
      override;
  std::vector<Page*> choose_segments(const Layout& layout, size_t bytes)
      override;

  // --- turns of its job ---

  // A turn begins, and ends after one cycle more.
  void resume();
  void end_turn_after_cycle();
  void end_turn() {
    ends_at_ = Page::kNever;
  }
  // Operators until the turn ends; kNever: it is not known.
  uint64_t until_end() const;
  // Between turns: the pages that are to be here when the next one begins.
  void list_for_turn(std::vector<Page*>& fetch);
  // Another job has driven the page out.
  void note_driven_out(Page& page);
  // Another job uses the page from now on.
  void let_go(Page& page);
  // One of the pages; null: there is none.
  Page* any_page();
  // Operators until the page is needed, as far as that is known.
  uint64_t distance_to(const Page& page) const;

  const History& history() const {
    return history_;
  }
  // Steps that have been taken with the lock held to make plans and to follow
  // them: each looks at one use or page, or at one wish.
  uint64_t planning_work() const {
    return planning_work_ + wishes_.work();
  }

 private:
  struct Dropped {
    std::unique_ptr<Plan> plan;
    Wishes wishes;
  };
  // See Note [Making a plan].
  struct PlanDraft final : Draft {
    PlanDraft(
        const History& history,
        size_t bytes,
        double copy_ns,
        bool makes_again)
        : cycle(history),
          capacity(bytes),
          copy_ns(copy_ns),
          makes_again(makes_again) {}
    void compute() override;

    CycleReader cycle;
    const size_t capacity;
    const double copy_ns;
    const bool makes_again;
    std::unique_ptr<Plan> plan; // the one before once this one is followed
    Wishes wishes; // those that belong to the plan before
    bool is_followed = false;
  };

  Cost cost_of(const Page& page) const override;
  Cost cost_by_use(const Page& page) const;
  size_t cost_now(const std::vector<Page*>& pages) const;
  bool may_evict(const Page& page) const override;

  bool is_plan_due() const;
  void begin_plan(Actions& actions);
  void adopt(PlanDraft& draft);
  bool tell_pages(Actions& actions);
  void tell(Page* page, Actions& actions);
  uint32_t idle_in(const Page& page) const;
  void drop_plan();
  void follow_plan(const Operator& op, Actions& actions);
  void ask_for_planned(uint32_t position, uint64_t most);
  void ask_for(Plan::Range& fetches, uint64_t until);
  void end_idle_time(const Page& page);
  void replace_wishes(Wishes& other);
  void note_surprises(const Operator& op);
  static void foretell(const Interval& interval, uint64_t now, Page& page);
  bool is_over(const Page& page) const;
  void list_wishes(std::vector<Page*>& fetch);
  void evict(Interval& interval, Page* page, Actions& actions);

  const uint64_t job_ = 0;
  OtherJobs* const others_ = nullptr; // null: there are none
  uint64_t ends_at_ = Page::kNever; // the turn, with this operator
  size_t capacity_ = Page::kNever;
  size_t planned_for_ = 0; // the capacity of the latest plan; 0: there was none
  // A request found no room: only then does anything move.
  bool must_plan_ = false;
  History history_;
  std::unique_ptr<Plan> plan_;
  std::shared_ptr<PlanDraft> draft_; // null: none is in the making
  std::shared_ptr<Dropped> dropped_; // to go with the next actions
  uint64_t planning_work_ = 0; // but for that of wishes_
  uint64_t planned_at_ = 0; // the operator that ended the plan's cycle
  uint64_t hinted_at_ = 0; // since then hints are as they were one cycle before
  // The plan knows how each of its intervals ends, or never will.
  bool is_complete_ = false;
  uint64_t needed_matches_ = History::kWindow; // before the next plan
  uint64_t surprises_ = 0; // of the plan, see note_surprises
  uint64_t gains_ = 0; // uses since then of what could have been made again
  double copy_ns_ = 0; // see Clock
  Trial trial_;
  bool is_plan_wanted_ = false; // of the other kind, by the trial
  uint64_t distrusted_until_ = 0; // no plan before this operator
  uint64_t distrust_ = 0; // operators without a plan after the last that failed
  Wishes wishes_;
  std::deque<Plan::Range> late_; // what operators before had no time to ask for
  const Page* ahead_ = nullptr; // of the request at hand
  uint64_t arrived_ = 0; // of the request at hand, as are the next
  uint64_t sent_ = 0;
  uint64_t drained_ = 0;
  uintptr_t hand_ = 0; // of the searches, see Note [Bounded search]
};

} // namespace at::cuda::lms
