#include <ATen/cuda/detail/LMSCorePager.h>

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

namespace at::cuda::lms {

void Pager::pin(PageEntry* page) {
  residence.add_pin(page);
  books.contention.note_pins(1);
}

HostPieces Pager::allocate_on_host(size_t bytes) {
  HostMemory::Wait wait(/*is_allowed=*/true);
  HostPieces host;
  do {
    const Lock lock(books.mutex);
    host = books.disk.allocate(bytes, wait);
  } while (host.empty() && books.world.finish(wait));
  return host;
}

void Pager::follow(const Operator& op, Stream stream, Sequel& sequel) {
  actions_.evict.clear();
  actions_.drop.clear();
  actions_.save.clear();
  actions_.fetch.clear();
  actions_.mark = 0;
  books.policy->on_operator(op, actions_);
  if (actions_.mark > 0) {
    books.world.mark(stream, actions_.mark);
  }
  obey(actions_, sequel);
  books.disk.advance();
  sequel.disk_failure = books.disk.take_failure();
  sequel.draft = std::move(actions_.draft);
  sequel.dropped = std::move(actions_.dropped);
  sequel.overtaken =
      books.progress.overtaken_by(op, stream, books.policy->makes_again());
}

// Starts the evictions that the policy wants, and pins what it wants to be
// fetched.
void Pager::obey(const Actions& actions, Sequel& sequel) {
  sequel.eviction.keeps_memory = true; // until somebody needs it
  sequel.eviction.add(actions.evict);
  reclaimer.let_drop(actions.drop, sequel.eviction);
  reclaimer.evict(sequel.eviction, sequel.freed);
  save(actions.save);
  if (!actions.fetch.empty()) {
    books.progress.note_arrivals();
  }
  const size_t most =
      kMostArriving - std::min(kMostArriving, books.progress.arriving());
  const size_t first = sequel.ahead.size();
  for (Page* page : actions.fetch) {
    if (sequel.ahead.size() - first >= most) {
      break;
    }
    if (entry(page)->is_on_host()) {
      sequel.ahead.push_back(entry(page));
      residence.add_own_pin(entry(page));
    }
  }
}

// As long as what must leave now would not wait for it.
void Pager::save(const std::vector<Page*>& pages) {
  for (Page* page : pages) {
    if (books.progress.leaving() >= kMostSaving ||
        (page->evictable && !page->clean && !residence.save(entry(page)))) {
      break;
    }
  }
}

void Pager::complete(Sequel& sequel) {
  sequel.dropped.reset();
  sequel.freed.let_go();
  if (!sequel.disk_failure.empty()) {
    books.world.warn(
        "LMS leaves the disk out: ", std::runtime_error(sequel.disk_failure));
  }
  reclaimer.finish(sequel.eviction);
  if (sequel.draft) {
    try {
      finish_plan(*sequel.draft, sequel);
    } catch (const std::exception& error) {
      books.world.warn("LMS could not make a plan: ", error);
    }
  }
  if (!sequel.ahead.empty()) {
    fetcher.fetch_ahead(sequel.ahead);
  }
}

// Works on a plan, with the mutex for a part at a time (Note [Making a plan]).
void Pager::finish_plan(Draft& draft, Sequel& sequel) {
  bool goes_on = true;
  while (goes_on) {
    draft.compute();
    {
      const Lock lock(books.mutex);
      actions_.evict.clear();
      actions_.drop.clear();
      actions_.save.clear();
      actions_.fetch.clear();
      goes_on = books.policy->advance(draft, actions_);
      obey(actions_, sequel); // at once: pages may die before the next part
    }
    sequel.freed.let_go();
    reclaimer.finish(sequel.eviction);
  }
}

void Pager::wait_for_device(const Sequel& sequel) noexcept {
  for (const Event& event : sequel.overtaken) {
    books.world.wait_on_host(event);
  }
}

} // namespace at::cuda::lms
