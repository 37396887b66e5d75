#pragma once

#include <ATen/cuda/detail/LMSHistory.h>
#include <ATen/cuda/detail/LMSPlan.h>
#include <ATen/cuda/detail/LMSPolicy.h>
#include <ATen/cuda/detail/LMSSpace.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace at::cuda::lms {

// Follows the plan of a cycle while the sequence repeats. What the plan did not
// foresee, and everything while there is none, is evicted by farthest next use
// as far as that is known, and by least recent use otherwise.
class PlannedPolicy final : public Policy, private Ranking {
 public:
  void set_capacity(size_t bytes) override;
  void on_operator(const Operator& op, Actions& actions) override;
  void on_death(Page* page) override;
  std::vector<Page*> choose_window(const Layout& layout, const Request& request)
      override;
  std::vector<Page*> choose_segments(const Layout& layout, size_t bytes)
      override;

 private:
  Cost cost_of(const Page& page) const override;
  bool may_leave(const Page& page) const override;

  // By next use, then by id: nothing depends on where a page happens to be in
  // host memory.
  using ByNeed = std::map<std::pair<uint64_t, uint64_t>, Page*>;

  void make_plan(Actions& actions);
  void drop_plan();
  void follow_plan(const Operator& op, Actions& actions);
  void note_surprises(const Operator& op);
  static void foretell(
      const Plan::Interval& interval,
      uint64_t now,
      Page& page);
  uint64_t distance_to(const Page& page) const;
  void add_stray(Page* page);
  void remove_stray(const Page& page);
  void fetch_strays(ByNeed& strays, uint64_t until);
  void ask_for(Page* page);
  void ask_no_more_for(Page* page);
  void leave(Plan::Interval& interval, Page* page, Actions& actions);

  size_t capacity_ = Page::kNever;
  // A request found no room: only then does anything move.
  bool is_short_ = false;
  History history_;
  std::unique_ptr<Plan> plan_;
  uint64_t planned_at_ = 0; // the operator that ended the plan's cycle
  // The plan knows how each of its intervals ends, or never will.
  bool is_complete_ = false;
  uint64_t needed_matches_ = History::kWindow; // before the next plan
  uint64_t surprises_ = 0; // of the plan, see note_surprises
  uint64_t distrusted_until_ = 0; // no plan before this operator
  uint64_t distrust_ = 0; // operators without a plan after the last that failed
  ByNeed fetching_; // asked for
  ByNeed strays_; // pages that had to leave against the plan
  ByNeed first_strays_; // those of them for the first time since their last use
  const Page* ahead_ = nullptr; // of the request at hand
  uint64_t arrived_ = 0; // of the request at hand, as are the next
  uint64_t sent_ = 0;
  uint64_t left_ = 0;
  uintptr_t hand_ = 0; // of the searches, see Note [Bounded search]
};

} // namespace at::cuda::lms
