#include <ATen/cuda/detail/LMSCoreReclaim.h>

#include <ATen/cuda/detail/LMSCoreSpace.h>

#include <algorithm>
#include <exception>
#include <unordered_set>

namespace at::cuda::lms {

void Eviction::add(const std::vector<Page*>& victims) {
  // What is draining first: nothing keeps it alive through a wait.
  for (const bool is_draining : {true, false}) {
    for (Page* page : victims) {
      if (page->draining == is_draining) {
        pages.emplace_back(page, page->id);
      }
    }
  }
}

void Reclaimer::let_drop(const std::vector<Page*>& pages, Eviction& eviction) {
  std::vector<Page*> copied;
  for (Page* page : pages) {
    const bool is_kept = page->evictable && !page->clean;
    page->gain = is_kept && books_.policy->makes_again()
        ? books_.world.gain(*entry(page))
        : 0;
    if (page->gain == 0) { // it has the bytes, or cannot be made any more
      copied.push_back(page);
    }
  }
  eviction.add(copied);
}

void Reclaimer::evict(Eviction& eviction, Freed& freed) {
  auto& pages = eviction.pages;
  size_t done = 0;
  for (; done < pages.size(); ++done) {
    Page* page = pages[done].first;
    if (!page->evictable) {
      continue; // it was, before the wait
    }
    const size_t bytes = page->bytes;
    const bool is_overruled = page->hint.turn == Hint::Turn::kLast &&
        (eviction.keeps_memory || eviction.room > 0); // for want of memory
    const bool is_evicted = eviction.keeps_memory
        ? residence_.page_out(entry(page), eviction.wait, std::nullopt) !=
            nullptr
        : residence_.evict(page, eviction.wait, eviction.room, freed);
    if (eviction.wait.is_needed()) {
      break;
    }
    eviction.gone.count += is_evicted ? 1 : 0;
    eviction.gone.bytes += is_evicted ? bytes : 0;
    books_.stats.overruled += is_evicted && is_overruled ? 1 : 0;
    eviction.has_failed = eviction.has_failed || !is_evicted;
  }
  pages.erase(pages.begin(), pages.begin() + static_cast<std::ptrdiff_t>(done));
}

void Reclaimer::finish(Eviction& eviction) {
  while (books_.world.finish(eviction.wait)) {
    Freed freed(books_.contention);
    const Lock lock(books_.mutex);
    std::unordered_set<uint64_t> alive;
    for (const PageEntry* page : books_.pages.all()) {
      alive.insert(page->id);
    }
    const auto is_gone = [&alive](const std::pair<Page*, uint64_t>& entry) {
      return alive.count(entry.second) == 0;
    };
    auto& pages = eviction.pages;
    pages.erase(
        std::remove_if(pages.begin(), pages.end(), is_gone), pages.end());
    evict(eviction, freed);
  }
  eviction.has_failed = eviction.has_failed || !eviction.pages.empty();
  eviction.pages.clear(); // they may die before the next eviction
}

std::vector<Page*> Reclaimer::all_evictable() {
  std::vector<Page*> pages;
  for (PageEntry* page : books_.pages.all()) {
    if (page->evictable) {
      pages.push_back(page);
    }
  }
  // In the order of adoption: that of the table depends on which died when.
  std::sort(pages.begin(), pages.end(), [](const Page* a, const Page* b) {
    return a->id < b->id;
  });
  for (Draining& draining : books_.draining.all()) {
    pages.push_back(&draining);
  }
  return pages;
}

std::vector<Page*> Reclaimer::victims(const Request& request, Scope scope) {
  const Layout& layout = books_.map.layout();
  switch (scope) {
    case Scope::kWindow:
      return books_.policy->choose_window(layout, request);
    case Scope::kSegments:
      return books_.policy->choose_segments(layout, request.bytes);
    case Scope::kForOthers:
      return pages_of_segments(layout, request.bytes);
    case Scope::kAll:
      break;
  }
  return all_evictable();
}

Reclaimed Reclaimer::reclaim(
    Request wanted,
    Scope scope,
    bool may_wait) noexcept {
  Eviction eviction(may_wait);
  eviction.room = wanted.bytes;
  try {
    {
      Freed freed(books_.contention);
      const Lock lock(books_.mutex);
      books_.tell(wanted);
      eviction.add(victims(wanted, scope));
      if (scope == Scope::kWindow && !eviction.pages.empty()) {
        books_.note_shortage();
      }
      evict(eviction, freed);
    }
    finish(eviction);
  } catch (const std::exception& error) {
    // No memory even for the lists of victims: what is evicted is evicted.
    books_.world.warn("LMS could not reclaim memory: ", error);
  }
  return eviction.gone;
}

} // namespace at::cuda::lms
