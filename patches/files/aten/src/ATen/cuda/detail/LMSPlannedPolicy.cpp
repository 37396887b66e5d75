#include <ATen/cuda/detail/LMSPlannedPolicy.h>

#include <algorithm>

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
// A plan foresees the next use of each page. It is dropped when kMostSurprises
// more of them came at another time than 1 in kHitsPerSurprise did not.
constexpr uint64_t kHitsPerSurprise = 8;
constexpr uint64_t kMostSurprises = 32;
constexpr size_t kFetchesAtOnce = 64; // pages asked for after one operator
// How long before its next use a page is fetched that left against the plan.
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
    is_short_ = is_short_ && bytes < capacity_;
    capacity_ = bytes;
    drop_plan();
  }
}

void PlannedPolicy::on_operator(const Operator& op, Actions& actions) {
  history_.append(op);
  if (plan_ && history_.lag() != plan_->length()) {
    if (history_.now() - planned_at_ >= plan_->length()) {
      needed_matches_ = History::kWindow;
    } else if (plan_->length() > kShortCycle) {
      needed_matches_ = std::min(2 * needed_matches_, kMostMatches);
    }
    drop_plan();
  }
  if (plan_) {
    note_surprises(op);
  }
  if (plan_ && !is_complete_ &&
      history_.now() - planned_at_ == plan_->length()) {
    make_plan(actions); // now that a whole cycle has been seen
    is_complete_ = true;
  } else if (plan_) {
    follow_plan(op, actions);
  } else if (
      is_short_ && history_.lag() > 0 &&
      history_.matched() >= needed_matches_ &&
      history_.now() >= distrusted_until_) {
    make_plan(actions);
  } else {
    for (const Use& use : op.uses) {
      use.page->next_use = use.page->death = Page::kNever;
    }
  }
  while (!fetching_.empty() && fetching_.begin()->second->resident) {
    fetching_.erase(fetching_.begin());
  }
  for (const auto& [need, page] : fetching_) {
    if (actions.fetch.size() == kFetchesAtOnce) {
      break;
    }
    if (!page->resident) {
      actions.fetch.push_back(page);
    }
  }
}

void PlannedPolicy::on_death(Page* page) {
  if (plan_) {
    plan_->forget(*page, history_, planned_at_);
  }
  history_.on_death(page);
  ask_no_more_for(page);
  remove_stray(*page);
}

void PlannedPolicy::drop_plan() {
  plan_.reset();
  surprises_ = 0;
  fetching_.clear();
  strays_.clear();
  first_strays_.clear();
}

void PlannedPolicy::make_plan(Actions& actions) {
  drop_plan();
  plan_ = std::make_unique<Plan>(history_, capacity_ - capacity_ / kReserve);
  planned_at_ = history_.now();
  is_complete_ = true;
  const std::vector<char> is_due = plan_->due();
  for (uint32_t i = 0; i < plan_->count(); ++i) {
    Plan::Interval& interval = plan_->at(i);
    is_complete_ = is_complete_ && !interval.is_endless;
    Page* page = interval.page;
    interval.page = nullptr;
    if (!page) {
      continue;
    }
    foretell(
        interval, planned_at_ - plan_->length() + 1 + interval.begin, *page);
    if (interval.leaves && !is_due[i]) {
      leave(interval, page, actions); // it should have left by now
    } else if (is_due[i] && !page->resident) {
      ask_for(page);
    } else if (!page->resident && page->next_use != Page::kNever) {
      add_stray(page);
    }
  }
}

// What the interval says of the page that has been used just now.
void PlannedPolicy::foretell(
    const Plan::Interval& interval,
    uint64_t now,
    Page& page) {
  const bool comes_back = interval.length > 0;
  const bool dies = !comes_back && !interval.is_endless;
  page.next_use = comes_back ? now + interval.length : Page::kNever;
  page.death = dies ? now + interval.death : Page::kNever;
}

void PlannedPolicy::leave(
    Plan::Interval& interval,
    Page* page,
    Actions& actions) {
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
    Plan::Interval& interval = plan_->interval(position, slot++);
    remove_stray(*use.page);
    use.page->was_stray = false;
    ask_no_more_for(use.page); // it has come
    foretell(interval, history_.now(), *use.page);
    if (interval.leaves) {
      leave(interval, use.page, actions);
    }
  }
  if (!plan_->has_traffic()) {
    return;
  }
  fetch_strays(strays_, history_.now() + kStrayDistance);
  for (const uint32_t number : plan_->fetches(position)) {
    Plan::Interval& interval = plan_->at(number);
    if (Page* page = interval.page; page && !page->resident) {
      fetch_strays(
          first_strays_, page->next_use - distance_to(*page) / kSooner);
      ask_for(page);
    }
    interval.page = nullptr;
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

void PlannedPolicy::add_stray(Page* page) {
  const auto key = std::pair(page->next_use, page->id);
  strays_.emplace(key, page);
  if (!page->was_stray) {
    first_strays_.emplace(key, page);
  }
}

void PlannedPolicy::remove_stray(const Page& page) {
  const auto key = std::pair(page.next_use, page.id);
  strays_.erase(key);
  first_strays_.erase(key);
}

void PlannedPolicy::fetch_strays(ByNeed& strays, uint64_t until) {
  while (!strays.empty() && strays.begin()->first.first <= until) {
    Page* page = strays.begin()->second;
    remove_stray(*page);
    if (!page->resident) {
      page->was_stray = true;
      ask_for(page);
    }
  }
}

// What is needed first goes first, whenever it was asked for.
void PlannedPolicy::ask_for(Page* page) {
  fetching_.emplace(std::pair(page->next_use, page->id), page);
}

void PlannedPolicy::ask_no_more_for(Page* page) {
  fetching_.erase(std::pair(page->next_use, page->id));
}

// Operators until the page is used, as far as that is known.
uint64_t PlannedPolicy::distance_to(const Page& page) const {
  return page.next_use - std::min(page.next_use, history_.now());
}

Cost PlannedPolicy::cost_of(const Page& page) const {
  if (page.id == 0) {
    return {0, bytes_until_left(page, left_), 0};
  }
  const size_t out = page.clean ? 0 : page.bytes;
  // What is on its way may itself wait for memory that is being left.
  const bool is_here = page.arrives_at <= arrived_;
  const size_t wait = page.clean && is_here ? 0 : sent_ - left_ + page.bytes;
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
bool PlannedPolicy::may_leave(const Page& page) const {
  if (!ahead_ || page.id == 0) {
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
  is_short_ = true;
  if (request.leaving) {
    return {request.leaving}; // there is nothing better to be found
  }
  ahead_ = request.ahead;
  arrived_ = request.arrived;
  sent_ = request.sent;
  left_ = request.left;
  auto pages = cheapest_window(layout, request, *this, &hand_);
  ahead_ = nullptr;
  if (plan_) {
    for (Page* page : pages) {
      ask_no_more_for(page); // it would come back at once
      if (page->id != 0 && page->next_use != Page::kNever) {
        add_stray(page);
      }
    }
  }
  return pages;
}

std::vector<Page*> PlannedPolicy::choose_segments(
    const Layout& layout,
    size_t bytes) {
  is_short_ = true;
  return cheapest_segments(layout, bytes, *this);
}

} // namespace at::cuda::lms
