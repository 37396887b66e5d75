#include <ATen/cuda/detail/LMSCoreFetch.h>

#include <exception>
#include <stdexcept>

namespace at::cuda::lms {

bool Fetcher::wait_for(PageEntry* page, Lock& lock) {
  const auto is_settled = [page] {
    return page->state != PageEntry::State::kArriving;
  };
  if (!is_settled()) {
    // Who brings it may need the memory that this thread has pinned.
    const Contention::Waiting waiting(books_.contention);
    lock.wait(arrived_, is_settled);
  }
  return page->state == PageEntry::State::kResident;
}

bool Fetcher::wait_for(PageEntry* page) {
  Lock lock(books_.mutex);
  return wait_for(page, lock);
}

bool Fetcher::fetch(PageEntry* page) {
  {
    Lock lock(books_.mutex);
    if (wait_for(page, lock)) {
      return true;
    }
    if (page->state == PageEntry::State::kDropped) {
      return false;
    }
    books_.disk.forget_failure(page);
    page->state = PageEntry::State::kArriving;
  }
  complete(page, /*is_ahead=*/false);
  return true;
}

bool Fetcher::begin_making(PageEntry* page) {
  Lock lock(books_.mutex);
  if (wait_for(page, lock) || page->state != PageEntry::State::kDropped) {
    return false;
  }
  page->state = PageEntry::State::kArriving;
  return true;
}

// False if there is no room.
bool Fetcher::try_ahead(PageEntry* page) {
  const auto request = [&] {
    const Lock lock(books_.mutex);
    return request_for(*page, books_.world);
  };
  relocator_.make_gap(request());
  const auto is_wanted = [page] { return !page->dead && page->is_on_host(); };
  Eviction eviction(/*may_wait=*/true);
  {
    Freed freed(books_.contention);
    const Lock lock(books_.mutex);
    if (is_wanted() && !choose(page, eviction)) {
      return false;
    }
    reclaimer_.evict(eviction, freed);
  }
  reclaimer_.finish(eviction);
  if (eviction.has_failed) {
    return false;
  }
  {
    const Lock lock(books_.mutex);
    if (!is_wanted()) {
      return true; // nothing to be done
    }
    page->state = PageEntry::State::kArriving;
  }
  return complete(page, /*is_ahead=*/true);
}

// What has to be evicted for it. False if there is no room.
bool Fetcher::choose(PageEntry* page, Eviction& eviction) {
  Request request = request_for(*page, books_.world);
  request.ahead = page;
  books_.tell(request);
  if (!books_.map.is_crowded(request)) {
    return true;
  }
  eviction.add(books_.policy->choose_window(books_.map.layout(), request));
  return !eviction.pages.empty();
}

// Where its bytes are on disk only, the host waits for them: the device would
// wait for what has yet to be read, and an error could not be told in time.
void Fetcher::bring_to_host(PageEntry* page) {
  HostMemory::Wait wait(/*is_allowed=*/true);
  do {
    const Lock lock(books_.mutex);
    if (books_.disk.bring_to_host(page, wait)) {
      if (page->host.empty()) {
        throw std::runtime_error("LMS has moved a tensor's bytes elsewhere");
      }
      return;
    }
  } while (books_.world.finish(wait));
  throw std::runtime_error("LMS cannot wait for a tensor's bytes from disk");
}

// The page is kArriving. False if there is no room, ahead of its use.
bool Fetcher::complete(PageEntry* page, bool is_ahead) {
  const Traits traits = books_.world.traits();
  Freed freed(books_.contention);
  DeviceMemory memory;
  Events pending;
  Event arrival;
  bool is_here = false;
  try {
    if (!is_ahead) { // else it is there
      bring_to_host(page);
    }
    memory = books_.world.allocate(*page, is_ahead, pending);
    const Lock lock(books_.mutex);
    if (memory) {
      residence_.arrive(page, memory, is_ahead, pending, freed);
      arrival = page->arrival;
      is_here = true;
    } else {
      residence_.stay_away(page);
    }
  } catch (...) {
    books_.return_pending(memory.get(), pending);
    {
      const Lock lock(books_.mutex);
      residence_.stay_away(page);
    }
    arrived_.notify_all();
    throw;
  }
  arrived_.notify_all();
  if (traits.blocks_host) {
    books_.world.wait_on_host(arrival); // because the original engine did
  }
  if (!traits.keeps_copies) {
    const Lock lock(books_.mutex);
    books_.drop_copies(page);
  }
  return is_here;
}

void Fetcher::fetch_ahead(const std::vector<PageEntry*>& pages) noexcept {
  try {
    for (PageEntry* page : pages) {
      if (!try_ahead(page)) {
        break; // what is needed later has to wait too
      }
    }
  } catch (const std::exception& error) {
    // The operators that need the bytes will ask again, and report.
    books_.world.warn("LMS could not fetch ahead: ", error);
  }
  Freed freed(books_.contention);
  const Lock lock(books_.mutex);
  for (PageEntry* page : pages) {
    residence_.drop_own_pin(page, freed);
  }
}

} // namespace at::cuda::lms
