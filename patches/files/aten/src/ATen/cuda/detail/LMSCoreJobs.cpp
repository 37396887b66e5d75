#include <ATen/cuda/detail/LMSCoreJobs.h>

namespace at::cuda::lms {

JobsPolicy::JobsPolicy() : current_(&of(0)) {}

PlannedPolicy& JobsPolicy::of(uint64_t job) {
  auto& policy = policies_[job];
  if (!policy) {
    OtherJobs& others = *this;
    policy = std::make_unique<PlannedPolicy>(job, others);
    policy->set_capacity(capacity_);
  }
  return *policy;
}

PlannedPolicy& JobsPolicy::of(const Page& page) const {
  return page.job == job_ ? *current_ : *policies_.at(page.job);
}

void JobsPolicy::give_to(uint64_t job, Page& page) {
  of(page).let_go(page);
  page.job = job;
}

void JobsPolicy::set_capacity(size_t bytes) {
  capacity_ = bytes;
  for (auto& [job, policy] : policies_) {
    policy->set_capacity(bytes);
  }
}

void JobsPolicy::on_operator(const Operator& op, Actions& actions) {
  for (const Use& use : op.uses) {
    if (use.page->job != job_) {
      give_to(job_, *use.page);
    }
  }
  current_->on_operator(op, actions);
  if (next_ && current_->until_end() != Page::kNever) {
    next_->list_for_turn(actions.fetch);
  }
}

bool JobsPolicy::advance(Draft& draft, Actions& actions) {
  return current_->advance(draft, actions);
}

bool JobsPolicy::makes_again() const {
  return current_->makes_again();
}

void JobsPolicy::note_source(Page& page, uint64_t makes_at) {
  of(page).note_source(page, makes_at);
}

void JobsPolicy::note_hint(Page& page, Hint hint) {
  of(page).note_hint(page, hint);
}

void JobsPolicy::on_death(Page* page, uint8_t gain) {
  of(*page).on_death(page, gain);
}

void JobsPolicy::begin_turn(uint64_t job) {
  current_->end_turn();
  job_ = job;
  current_ = &of(job);
  next_ = nullptr;
  current_->resume();
}

void JobsPolicy::announce_turn(uint64_t next) {
  current_->end_turn_after_cycle();
  next_ = next == job_ ? nullptr : &of(next);
}

void JobsPolicy::end_job(uint64_t job) {
  const auto ended = policies_.find(job);
  if (job == 0 || ended == policies_.end()) {
    return;
  }
  while (Page* page = ended->second->any_page()) {
    give_to(0, *page); // somebody still has it
  }
  if (job == job_) {
    begin_turn(0);
  }
  if (next_ == ended->second.get()) {
    next_ = nullptr;
  }
  policies_.erase(ended);
}

std::vector<Page*> JobsPolicy::choose_window(
    const Layout& layout,
    const Request& request) {
  return current_->choose_window(layout, request);
}

std::vector<Page*> JobsPolicy::choose_segments(
    const Layout& layout,
    size_t bytes) {
  return current_->choose_segments(layout, bytes);
}

uint64_t JobsPolicy::distance_to(const Page& page) const {
  const PlannedPolicy& policy = of(page);
  const uint64_t until_turn = current_->until_end();
  return &policy != next_ || until_turn == Page::kNever
      ? kFar
      : until_turn + policy.distance_to(page);
}

void JobsPolicy::note_driven_out(Page& page) {
  of(page).note_driven_out(page);
}

std::unique_ptr<Policy> make_planned_policy() {
  return std::make_unique<JobsPolicy>();
}

} // namespace at::cuda::lms
