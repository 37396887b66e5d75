#include <ATen/cuda/detail/LMSPlannedPolicy.h>

#include <algorithm>
#include <utility>

namespace at::cuda::lms {
namespace {

// The part of the capacity that plans do without, since free memory is not in
// one piece: 1 / kReserve.
constexpr size_t kReserve = 64;
// A plan that never comes through a whole cycle makes the next one wait longer,
// up to this.
constexpr uint64_t kMostMatches = 4096; // operators
// That of a shorter cycle does not: it costs little, and where an optimizer
// makes its state, some operators repeat for each parameter.
constexpr uint64_t kShortCycle = 64; // operators
// The plan of a cycle of more than History::kAlways takes seconds. So it has to
// have matched for 1 / kLongMatches of that, or for as long as it takes itself
// if such plans keep failing.
constexpr uint64_t kLongMatches = 64;
// A plan is made at once for so many uses of pages: that takes 5 to 10 ms. For
// more it is made in parts, which is what is looked at then with the lock held.
constexpr uint64_t kMostAtOnce = 1 << 14;
constexpr uint64_t kPart = 1 << 12;
// Where many pages come back after one operator, so many steps of planning_work
// are taken to ask for them, and kStepsPerUse more for each page that it uses.
// The rest is asked for after the next ones. No more pages come back than are
// used, so in the end it catches up, and it is ahead of what is listed.
constexpr uint64_t kMostSteps = 1 << 11;
constexpr uint64_t kStepsPerUse = 4;
// A plan foresees the next use of each page. It is dropped when kMostSurprises
// more of them came at another time than 1 in kHitsPerSurprise did not.
constexpr uint64_t kHitsPerSurprise = 8;
constexpr uint64_t kMostSurprises = 32;
// How long before its next use a page is fetched that was evicted against
// the plan.
constexpr uint64_t kStrayDistance = 64; // operators
// It is fetched before a page of the plan if it is needed sooner by 1 / kSooner
// of the time until that one is. Nothing but what is needed sooner may be ahead
// of it in the queue of copies.
constexpr uint64_t kSooner = 4;
// Much later: by 1 / kMuchLater of the cycle.
constexpr uint64_t kMuchLater = 4;
// To bring a page back that is needed at once costs kUrgency / kNear times
// more.
constexpr uint64_t kUrgency = 256;
constexpr uint64_t kNear = 16; // operators

} // namespace

void PlannedPolicy::set_capacity(size_t bytes) {
  if (bytes != capacity_) {
    must_plan_ = must_plan_ && bytes < capacity_;
    capacity_ = bytes;
    drop_plan();
  }
}

void PlannedPolicy::on_operator(const Operator& op, Actions& actions) {
  if (plan_ && plan_->has_traffic()) {
    for (const Use& use : op.uses) {
      end_idle_time(*use.page);
    }
  }
  history_.append(op);
  if (draft_ && history_.lag() != draft_->cycle.length()) {
    draft_.reset();
  }
  if (plan_ && history_.lag() != plan_->length()) {
    const bool is_long = plan_->length() > History::kAlways;
    const uint64_t most = is_long ? plan_->length() : kMostMatches;
    if (history_.now() - planned_at_ >= plan_->length()) {
      needed_matches_ = History::kWindow;
    } else if (plan_->length() > kShortCycle) {
      needed_matches_ = std::min(2 * needed_matches_, most);
    }
    drop_plan();
  }
  if (plan_) {
    note_surprises(op);
  }
  actions.dropped = std::move(dropped_);
  if (is_plan_due()) {
    begin_plan(actions);
    return;
  }
  if (plan_) {
    follow_plan(op, actions);
  } else {
    for (const Use& use : op.uses) {
      use.page->next_use = use.page->death = Page::kNever;
    }
  }
  wishes_.list(actions.fetch);
}

void PlannedPolicy::on_death(Page* page) {
  end_idle_time(*page);
  history_.on_death(page);
  wishes_.ask_no_more_for(*page);
  wishes_.remove_stray(*page);
}

// The page dies, or is used before the plan has brought it back: it is no more
// for its interval to do so.
void PlannedPolicy::end_idle_time(const Page& page) {
  const uint32_t number = plan_ ? idle_in(page) : Cycle::kNone;
  if (number != Cycle::kNone && plan_->at(number).page == &page) {
    plan_->at(number).page = nullptr;
  }
}

// What is dropped goes with the next actions: to free it takes time, too.
void PlannedPolicy::drop_plan() {
  surprises_ = 0;
  if (plan_) {
    auto dropped = std::make_shared<Dropped>();
    dropped->plan = std::move(plan_);
    replace_wishes(dropped->wishes);
    dropped_ = std::move(dropped);
  }
  draft_.reset();
}

// By the other plan's, which are none yet. The present ones are `other` then.
void PlannedPolicy::replace_wishes(Wishes& other) {
  planning_work_ += wishes_.work();
  std::swap(wishes_, other);
  late_.clear();
}

// --- see Note [Making a plan] ---

bool PlannedPolicy::is_plan_due() const {
  const uint64_t lag = history_.lag();
  if (draft_) {
    return false;
  }
  if (plan_) { // a whole cycle has been seen
    return !is_complete_ && history_.now() - planned_at_ >= lag;
  }
  const uint64_t least = lag > History::kAlways ? lag / kLongMatches : 0;
  return must_plan_ && lag > 0 &&
      history_.matched() >= std::max(needed_matches_, least) &&
      history_.now() >= distrusted_until_;
}

void PlannedPolicy::begin_plan(Actions& actions) {
  draft_ =
      std::make_shared<PlanDraft>(history_, capacity_ - capacity_ / kReserve);
  actions.draft = draft_;
  const uint64_t first = history_.now() - history_.lag() + 1;
  if (history_.uses_since(first) <= kMostAtOnce) {
    finish_draft(*this, actions);
  }
}

void PlannedPolicy::PlanDraft::compute() {
  if (cycle.is_done() && !plan) {
    plan = std::make_unique<Plan>(cycle.take(), capacity);
  }
}

bool PlannedPolicy::advance(Draft& draft, Actions& actions) {
  if (&draft != draft_.get()) {
    return false;
  }
  if (!draft_->cycle.is_done()) {
    planning_work_ += kPart;
    if (!draft_->cycle.read(history_, kPart)) {
      draft_.reset();
    }
    return draft_ != nullptr;
  }
  if (!draft_->is_followed) {
    adopt(*draft_);
  }
  if (tell_pages(actions)) {
    return true;
  }
  draft_.reset();
  wishes_.list(actions.fetch);
  return false;
}

// The plan before stays with the draft, which is let go without the lock.
void PlannedPolicy::adopt(PlanDraft& draft) {
  is_complete_ = draft.plan->is_complete() || plan_ != nullptr;
  std::swap(plan_, draft.plan);
  replace_wishes(draft.wishes);
  draft.is_followed = true;
  planned_at_ = draft.cycle.end();
  surprises_ = 0;
  if (plan_->count() <= kMostAtOnce) {
    history_.begin_pages_since(planned_at_ - plan_->length() + 1);
  } else {
    history_.begin_pages();
  }
}

// False if all have been told.
bool PlannedPolicy::tell_pages(Actions& actions) {
  const uint64_t until = planning_work() + kPart;
  while (planning_work() < until) {
    Page* page = history_.next_page();
    if (!page) {
      return false;
    }
    ++planning_work_;
    tell(page, actions);
  }
  return true;
}

void PlannedPolicy::tell(Page* page, Actions& actions) {
  const uint32_t number = idle_in(*page);
  if (number == Cycle::kNone) {
    return;
  }
  // Other threads may have asked for it since the plan is followed.
  wishes_.ask_no_more_for(*page);
  wishes_.remove_stray(*page);
  Interval& interval = plan_->at(number);
  foretell(interval, page->last_use, *page);
  const bool is_due = plan_->is_due(number);
  if (interval.is_evicted && !is_due) {
    evict(interval, page, actions); // it should have been by now
  } else if (is_due && !page->resident) {
    wishes_.ask_for(page);
  } else if (!page->resident && page->next_use != Page::kNever) {
    wishes_.add_stray(page);
  }
}

// The number of the interval that began with the page's last use.
uint32_t PlannedPolicy::idle_in(const Page& page) const {
  const uint64_t length = plan_->length();
  if (!history_.has(page.last_use) || page.last_use + length <= planned_at_) {
    return Cycle::kNone;
  }
  const auto position = static_cast<uint32_t>(
      (page.last_use + length - planned_at_ - 1) % length);
  const auto slot = static_cast<uint32_t>(
      page.last_slot - history_.entry(page.last_use).first_slot);
  return slot < plan_->slots(position) ? plan_->number(position, slot)
                                       : Cycle::kNone;
}

// What the interval says of the page that has been used just now.
void PlannedPolicy::foretell(
    const Interval& interval,
    uint64_t now,
    Page& page) {
  const bool comes_back = interval.length > 0;
  const bool dies = !comes_back && !interval.is_endless;
  page.next_use = comes_back ? now + interval.length : Page::kNever;
  page.death = dies ? now + interval.death : Page::kNever;
}

void PlannedPolicy::evict(Interval& interval, Page* page, Actions& actions) {
  interval.page = page;
  if (page->resident) {
    actions.evict.push_back(page);
  }
}

void PlannedPolicy::follow_plan(const Operator& op, Actions& actions) {
  const auto position = static_cast<uint32_t>(
      (history_.now() - planned_at_ - 1) % plan_->length());
  uint32_t slot = 0;
  for (const Use& use : op.uses) {
    // The history leaves out what is named twice, too.
    if (use.page->last_slot !=
            history_.entry(history_.now()).first_slot + slot ||
        slot >= plan_->slots(position)) {
      continue;
    }
    Interval& interval = plan_->interval(position, slot++);
    wishes_.remove_stray(*use.page);
    use.page->was_stray = false;
    wishes_.ask_no_more_for(*use.page); // it has come
    foretell(interval, history_.now(), *use.page);
    if (interval.is_evicted) {
      evict(interval, use.page, actions);
    }
  }
  if (!plan_->has_traffic()) {
    return;
  }
  wishes_.ask_for_strays(history_.now() + kStrayDistance);
  ask_for_planned(position, kMostSteps + kStepsPerUse * op.uses.size());
}

// For what comes back after the operator, and then for what is late, in so many
// steps.
void PlannedPolicy::ask_for_planned(uint32_t position, uint64_t most) {
  const uint64_t until = planning_work() + most;
  Plan::Range fetches = plan_->fetches(position);
  ask_for(fetches, until);
  while (!late_.empty() && planning_work() < until) {
    ask_for(late_.front(), until);
    if (late_.front().is_empty()) {
      late_.pop_front();
    }
  }
  if (!fetches.is_empty()) {
    late_.push_back(fetches);
  }
}

// Takes off the range what has been asked for.
void PlannedPolicy::ask_for(Plan::Range& fetches, uint64_t until) {
  for (; !fetches.is_empty() && planning_work() < until; ++fetches.first) {
    ++planning_work_;
    Page* page = std::exchange(plan_->at(*fetches.first).page, nullptr);
    if (page && !page->resident) {
      wishes_.ask_for_first_strays(
          page->next_use - distance_to(*page) / kSooner);
      wishes_.ask_for(page);
    }
  }
}

// The operators may be of the same kinds as before and yet use other pages, as
// where layers that are alike run in another order each time. A plan is worse
// than none then, for longer each time that it happens again.
void PlannedPolicy::note_surprises(const Operator& op) {
  for (const Use& use : op.uses) {
    if (use.page->next_use == Page::kNever) {
      continue; // new, or not foreseen
    }
    if (use.page->next_use != history_.now()) {
      surprises_ += kHitsPerSurprise;
    } else if (surprises_ > 0) {
      --surprises_;
    }
  }
  if (surprises_ > kMostSurprises * kHitsPerSurprise) {
    distrust_ = std::max<uint64_t>(2 * distrust_, plan_->length());
    distrusted_until_ = history_.now() + distrust_;
    drop_plan();
  }
}

// Operators until the page is used, as far as that is known.
uint64_t PlannedPolicy::distance_to(const Page& page) const {
  return page.next_use - std::min(page.next_use, history_.now());
}

Cost PlannedPolicy::cost_of(const Page& page) const {
  if (page.draining) {
    return {0, bytes_until_drained(page, drained_), 0};
  }
  const size_t out = page.clean ? 0 : page.bytes;
  // What is on its way may itself wait for memory that is draining.
  const bool is_here = page.arrives_at <= arrived_;
  const size_t wait = page.clean && is_here ? 0 : sent_ - drained_ + page.bytes;
  if (!plan_) {
    return {page.last_use, wait, out};
  }
  if (page.next_use == Page::kNever) {
    return {0, wait, out};
  }
  // It comes back, and the sooner it is needed the worse.
  const uint64_t urgency = kUrgency / (distance_to(page) + kNear);
  return {0, wait, out + page.bytes * (1 + urgency)};
}

// What is fetched ahead can wait for the memory of what dies before its use.
// What comes back would have to be fetched again, and soon if that is not much
// later.
bool PlannedPolicy::may_evict(const Page& page) const {
  if (!ahead_ || page.draining) {
    return true;
  }
  if (page.next_use == Page::kNever) {
    return page.death > ahead_->next_use;
  }
  const uint64_t later = plan_ ? plan_->length() / kMuchLater : 0;
  return page.next_use > ahead_->next_use + later;
}

std::vector<Page*> PlannedPolicy::choose_window(
    const Layout& layout,
    const Request& request) {
  must_plan_ = true;
  if (request.draining) {
    return {request.draining}; // there is nothing better to be found
  }
  ahead_ = request.ahead;
  arrived_ = request.arrived;
  sent_ = request.sent;
  drained_ = request.drained;
  auto pages = cheapest_window(layout, request, *this, &hand_);
  ahead_ = nullptr;
  if (plan_) {
    for (Page* page : pages) {
      wishes_.ask_no_more_for(*page); // it would come back at once
      if (!page->draining && page->next_use != Page::kNever) {
        wishes_.add_stray(page);
      }
    }
  }
  return pages;
}

std::vector<Page*> PlannedPolicy::choose_segments(
    const Layout& layout,
    size_t bytes) {
  must_plan_ = true;
  return cheapest_segments(layout, bytes, *this);
}

std::unique_ptr<Policy> make_planned_policy() {
  return std::make_unique<PlannedPolicy>();
}

} // namespace at::cuda::lms
