#include <ATen/cuda/detail/LMSCorePlannedPolicy.h>

#include <ATen/cuda/detail/LMSCoreLead.h>

#include <algorithm>
#include <utility>

namespace at::cuda::lms {
namespace {

// A plan may use capacity * (1 - 1 / kReserve): free memory is never all in one
// piece. Where bytes are made again, more is needed for the moment.
constexpr size_t kReserve = 64;
constexpr size_t kReserveToMake = 32;

// A capacity that differs by no more than 1 / kAlike of itself from the one
// that was planned for is followed with the same plan, unless it is smaller by
// more than the plan leaves free: where memory is gathered for an operator, the
// device is taken as one segment again, and that is never of quite the same
// size.
constexpr size_t kAlike = 16;

// How many operators have to match before a plan is made. The number is doubled
// each time that a plan is dropped before a whole cycle has passed, up to
// kMostMatches. It is not for a cycle shorter than kShortCycle: its plan costs
// little, and some operators repeat for each parameter while an optimizer makes
// its state.
constexpr uint64_t kMostMatches = 4096; // operators
constexpr uint64_t kShortCycle = 64; // operators
// The plan of a cycle longer than History::kAlways takes seconds. It is made
// once the cycle has matched for 1 / kLongMatches of its length, and later
// while such plans keep failing: after up to a whole cycle.
constexpr uint64_t kLongMatches = 64;

// A plan for up to kMostAtOnce uses of pages is made at once, in 5 to 10 ms. A
// larger one is made in parts of kPart uses, so that the device's lock is held
// for the time of one part only.
constexpr uint64_t kMostAtOnce = 1 << 14;
constexpr uint64_t kPart = 1 << 12;
// Many pages may be due to come back after one operator. It asks for them for
//   kMostSteps + kStepsPerUse * (pages that the operator uses)
// steps of planning_work, and the next operators ask for the rest. They catch
// up, since no more pages come back than are used.
constexpr uint64_t kMostSteps = 1 << 11;
constexpr uint64_t kStepsPerUse = 4;

// A plan foresees the next use of each page. A use at another time is a
// surprise, and kHitsPerSurprise uses that come as foreseen make up for one.
// The plan is dropped when more than kMostSurprises are left.
constexpr uint64_t kHitsPerSurprise = 8;
constexpr uint64_t kMostSurprises = 32;

// A stray page was evicted although the plan keeps it. It is fetched so many
// operators before its next use.
constexpr uint64_t kStrayDistance = 64;
// It goes before a page of the plan that is used `distance` operators from now
// if its own use is at least distance / kSooner operators sooner. Copies run in
// order, so what goes first delays the rest.
constexpr uint64_t kSooner = 4;
// A page is used much later than another one if more than 1 / kMuchLater of the
// cycle lies between them.
constexpr uint64_t kMuchLater = 4;
// To evict a page that is used `distance` operators from now costs
//   1 + kUrgency / (distance + kNear)
// times the copy back: the sooner it is used, the less of that copy is hidden.
constexpr uint64_t kUrgency = 256;
constexpr uint64_t kNear = 16; // operators

} // namespace

void PlannedPolicy::set_capacity(size_t bytes) {
  if (bytes == capacity_) {
    return;
  }
  const size_t planned = planned_for_ > 0 ? planned_for_ : capacity_;
  const bool is_alike = planned != Page::kNever &&
      bytes <= planned + planned / kAlike &&
      bytes >= planned - planned / kAlike;
  if (!is_alike) {
    must_plan_ = must_plan_ && bytes < capacity_;
    trial_.forget();
  }
  capacity_ = bytes;
  if (!is_alike || bytes < planned - planned / kReserve) {
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
  copy_ns_ = op.clock.copy_ns;
  for (const Use& use : op.uses) {
    gains_ += use.gain > 0 ? 1 : 0;
  }
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
  if (plan_ && !draft_) {
    const Trial::Verdict verdict =
        trial_.follow(history_.now(), plan_->length(), gains_, op.clock);
    actions.mark = verdict == Trial::Verdict::kMark ? history_.now() : 0;
    is_plan_wanted_ = is_plan_wanted_ || verdict == Trial::Verdict::kPlanAnew;
  }
  actions.dropped = std::move(dropped_);
  if (is_plan_due()) {
    begin_plan(actions);
    if (plan_ && planned_at_ == history_.now()) {
      return; // the new plan has been told of the operator
    }
  }
  if (plan_) {
    follow_plan(op, actions);
  } else {
    for (const Use& use : op.uses) {
      use.page->next_use = use.page->death = Page::kNever;
      use.page->gain = makes_again() ? use.gain : 0;
    }
  }
  list_wishes(actions.fetch);
}

// What is needed after the turn only comes with the next one.
void PlannedPolicy::list_wishes(std::vector<Page*>& fetch) {
  if (history_.now() > ends_at_) {
    end_turn(); // it goes on for longer than was announced
  }
  wishes_.list(fetch, ends_at_);
}

// --- turns, see Note [Jobs] ---

void PlannedPolicy::resume() {
  end_turn();
  wishes_.ask_for_all_strays();
  trial_.interrupt(history_.now());
}

void PlannedPolicy::end_turn_after_cycle() {
  ends_at_ = plan_ ? history_.now() + plan_->length() : Page::kNever;
}

uint64_t PlannedPolicy::until_end() const {
  return ends_at_ == Page::kNever
      ? Page::kNever
      : ends_at_ - std::min(ends_at_, history_.now());
}

void PlannedPolicy::list_for_turn(std::vector<Page*>& fetch) {
  wishes_.ask_for_all_strays();
  wishes_.list(fetch, Page::kNever);
}

void PlannedPolicy::note_driven_out(Page& page) {
  if (!plan_) {
    return;
  }
  wishes_.ask_no_more_for(page); // it would come back at once
  if (page.needed_at() != Page::kNever) {
    wishes_.add_stray(&page);
  }
}

void PlannedPolicy::let_go(Page& page) {
  on_death(&page, /*gain=*/0);
  page.first_use = page.last_use = page.last_slot = 0;
  page.next_use = page.death = page.makes_at = Page::kNever;
  page.was_stray = false;
}

Page* PlannedPolicy::any_page() {
  history_.begin_pages();
  return history_.next_page();
}

// The turn ends before it is needed, or dies.
bool PlannedPolicy::is_over(const Page& page) const {
  return ends_at_ != Page::kNever &&
      std::min(page.needed_at(), page.death) > ends_at_;
}

void PlannedPolicy::note_source(Page& page, uint64_t makes_at) {
  const bool was_asked_for = wishes_.ask_no_more_for(page);
  wishes_.remove_stray(page);
  page.makes_at = makes_at;
  if (was_asked_for && makes_at != Page::kNever) {
    wishes_.ask_for(&page);
  } else if (plan_ && !page.resident && page.needed_at() != Page::kNever) {
    wishes_.add_stray(&page); // it may be needed sooner than the plan knows
  }
}

void PlannedPolicy::note_hint(Page& page, Hint hint) {
  page.hint = hint;
  if (hint.again == Hint::Again::kNever) {
    page.gain = 0;
  }
  if (history_.note_hint(page)) {
    hinted_at_ = history_.now();
  }
}

void PlannedPolicy::on_death(Page* page, uint8_t gain) {
  end_idle_time(*page);
  history_.on_death(page, gain);
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
  is_plan_wanted_ = false;
  if (plan_) {
    auto dropped = std::make_shared<Dropped>();
    dropped->plan = std::move(plan_);
    replace_wishes(dropped->wishes);
    dropped_ = std::move(dropped);
    trial_.end_plan();
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
  if (plan_) { // a whole cycle has been seen, with the hints that there are now
    const bool is_out_of_date = !is_complete_ || hinted_at_ + lag > planned_at_;
    return is_plan_wanted_ ||
        (is_out_of_date &&
         history_.now() - std::max(planned_at_, hinted_at_) >= lag);
  }
  const uint64_t least = lag > History::kAlways ? lag / kLongMatches : 0;
  return must_plan_ && lag > 0 &&
      history_.matched() >= std::max(needed_matches_, least) &&
      history_.now() >= distrusted_until_;
}

void PlannedPolicy::begin_plan(Actions& actions) {
  trial_.note_cycle(history_.lag());
  // If nothing can be made, it is a plan that only copies.
  const bool makes_again = trial_.makes_again() && gains_ > 0;
  planned_for_ = capacity_;
  draft_ = std::make_shared<PlanDraft>(
      history_,
      capacity_ - capacity_ / (makes_again ? kReserveToMake : kReserve),
      copy_ns_,
      makes_again);
  actions.draft = draft_;
  const uint64_t first = history_.now() - history_.lag() + 1;
  if (history_.uses_since(first) <= kMostAtOnce) {
    finish_draft(*this, actions);
  }
}

void PlannedPolicy::PlanDraft::compute() {
  if (cycle.is_done() && !plan) {
    plan = std::make_unique<Plan>(cycle.take(), capacity, copy_ns, makes_again);
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
    if (trial_.declines(draft_->plan->copying_us())) {
      is_plan_wanted_ = !trial_.is_of_kind();
      draft_.reset();
      return false;
    }
    adopt(*draft_);
  }
  if (tell_pages(actions)) {
    return true;
  }
  draft_.reset();
  list_wishes(actions.fetch);
  return false;
}

// The plan before stays with the draft, which is let go without the lock.
void PlannedPolicy::adopt(PlanDraft& draft) {
  is_complete_ = draft.plan->is_complete() || plan_ != nullptr;
  std::swap(plan_, draft.plan);
  replace_wishes(draft.wishes);
  draft.is_followed = true;
  planned_at_ = draft.cycle.end();
  surprises_ = gains_ = 0;
  is_plan_wanted_ = false;
  trial_.begin(planned_at_, plan_->gains());
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
  page->gain = 0; // if it is dropped, that is by the plan
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
  if (interval.is_saved) {
    interval.page = page;
  }
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
    // Of what could not be made again one cycle ago, it may be known now.
    const bool may_drop =
        makes_again() && (!interval.is_copied || interval.gain == 0);
    (may_drop ? actions.drop : actions.evict).push_back(page);
    if (page->makes_at < page->next_use) {
      wishes_.add_stray(page);
    }
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
    if (interval.is_saved) {
      interval.page = use.page;
    }
    if (interval.is_evicted) {
      evict(interval, use.page, actions);
    } else if (is_over(*use.page)) {
      actions.evict.push_back(use.page); // another job needs the memory
      if (use.page->needed_at() != Page::kNever) {
        wishes_.add_stray(use.page);
      }
    }
  }
  if (!plan_->has_traffic()) {
    return;
  }
  wishes_.ask_for_strays(std::min(history_.now() + kStrayDistance, ends_at_));
  ask_for_planned(position, kMostSteps + kStepsPerUse * op.uses.size());
  for (const uint32_t number : plan_->saves(position)) {
    if (Page* page = plan_->at(number).page) {
      actions.save.push_back(page);
    }
  }
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
          page->needed_at() - distance_to(*page) / kSooner);
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

// Operators until the page is needed, as far as that is known.
uint64_t PlannedPolicy::distance_to(const Page& page) const {
  if (page.job != job_) {
    return others_->distance_to(page);
  }
  const uint64_t needed_at = page.needed_at();
  return needed_at > ends_at_ ? OtherJobs::kFar
                              : needed_at - std::min(needed_at, history_.now());
}

Cost PlannedPolicy::cost_of(const Page& page) const {
  Cost cost = cost_by_use(page);
  cost.kept = page.hint.turn == Hint::Turn::kLast ? page.bytes : 0;
  return cost;
}

// What should be evicted first counts as never used again.
Cost PlannedPolicy::cost_by_use(const Page& page) const {
  const bool is_first = page.hint.turn == Hint::Turn::kFirst;
  if (page.draining) {
    return {0, bytes_until_drained(page, drained_), 0};
  }
  if (page.gain > 0) {
    // Without a plan, what was used just now is likely to be needed soon.
    const bool has_age = !plan_ && !is_first && page.job == job_;
    const uint64_t urgency =
        has_age ? kUrgency / (history_.now() - page.last_use + kNear) : 0;
    return {0, 0, page.bytes / page.gain * (1 + urgency)};
  }
  const size_t out = page.clean ? 0 : page.bytes;
  // What is on its way may itself wait for memory that is draining.
  const bool is_here = page.arrives_at <= arrived_;
  const size_t wait = page.clean && is_here ? 0 : sent_ - drained_ + page.bytes;
  if (!plan_) {
    const bool goes_first = is_first || page.job != job_;
    return {goes_first ? 0 : page.last_use, wait, out};
  }
  if (is_first || page.needed_at() == Page::kNever) {
    return {0, wait, out};
  }
  // It comes back, and the sooner it is needed the worse.
  const uint64_t urgency = kUrgency / (distance_to(page) + kNear);
  return {0, wait, out + page.bytes * (1 + urgency)};
}

// To take the memory of all of them costs so much now: bytes that are still to
// be copied, when the device gets here, until the last of them is free; and
// those that leave or are made again because of it. What comes back later comes
// ahead of its use. More than anything, if one of them should be evicted last.
size_t PlannedPolicy::cost_now(const std::vector<Page*>& pages) const {
  size_t wait = 0;
  size_t traffic = 0;
  for (const Page* page : pages) {
    const Cost cost = cost_of(*page);
    if (cost.kept > 0) {
      return Page::kNever;
    }
    const bool is_copied = !page->draining && !page->clean;
    wait = std::max(wait, cost.wait);
    traffic += page->gain > 0 ? cost.traffic : is_copied ? page->bytes : 0;
  }
  const size_t until_here =
      copy_ns_ > 0 ? static_cast<size_t>(kMostLead / copy_ns_) : 0;
  return wait - std::min(wait, until_here) + traffic;
}

// What is fetched ahead can wait for the memory of what dies before its use.
// What comes back would have to be fetched again, and soon if that is not much
// later.
bool PlannedPolicy::may_evict(const Page& page) const {
  if (!ahead_ || page.draining) {
    return true;
  }
  if (page.hint.turn == Hint::Turn::kLast) {
    return false;
  }
  if (page.job != ahead_->job) { // those of the turn are needed first
    return page.job != job_ || is_over(page);
  }
  const uint64_t needed_at = ahead_->needed_at();
  if (page.needed_at() == Page::kNever) {
    return page.death > needed_at;
  }
  const uint64_t later = plan_ ? plan_->length() / kMuchLater : 0;
  return page.needed_at() > needed_at + later;
}

std::vector<Page*> PlannedPolicy::choose_window(
    const Layout& layout,
    const Request& request) {
  must_plan_ = true;
  if (request.draining && may_wait_for(*request.draining, request)) {
    return {request.draining}; // there is nothing better to be found
  }
  ahead_ = request.ahead;
  arrived_ = request.arrived;
  sent_ = request.sent;
  drained_ = request.drained;
  auto pages = cheapest_window(layout, request, *this, &hand_);
  if (request.is_joined) {
    auto pieces =
        cheapest_pieces(layout, request, *this, hand_, cost_now(pages));
    if (!pieces.empty()) {
      pages = std::move(pieces);
    }
  }
  ahead_ = nullptr;
  for (Page* page : pages) {
    if (!page->draining && page->job != job_) {
      others_->note_driven_out(*page);
    } else if (!page->draining) {
      note_driven_out(*page);
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

} // namespace at::cuda::lms
