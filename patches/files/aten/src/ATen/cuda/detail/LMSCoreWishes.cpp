#include <ATen/cuda/detail/LMSCoreWishes.h>

#include <cstddef>
#include <utility>

namespace at::cuda::lms {
namespace {

constexpr size_t kFetchesAtOnce = 64; // pages listed after one operator
// Pages that have come stay asked for behind the first that has not, in case
// that they are driven out, but no more than this.
constexpr size_t kMostCome = 256;
// What is done of anything after one operator; the rest is done after the next.
constexpr size_t kMostPerOperator = 512; // pages

std::pair<uint64_t, uint64_t> key(const Page& page) {
  return {page.needed_at(), page.id};
}

} // namespace

void Wishes::ask_for(Page* page) {
  ++work_;
  asked_.emplace(key(*page), page);
}

bool Wishes::ask_no_more_for(const Page& page) {
  ++work_;
  return asked_.erase(key(page)) > 0;
}

void Wishes::add_stray(Page* page) {
  work_ += 2;
  strays_.emplace(key(*page), page);
  if (!page->was_stray) {
    first_strays_.emplace(key(*page), page);
  }
}

void Wishes::remove_stray(const Page& page) {
  work_ += 2;
  strays_.erase(key(page));
  first_strays_.erase(key(page));
}

void Wishes::ask_for_strays(uint64_t until) {
  ask_for(strays_, until);
}

void Wishes::ask_for_first_strays(uint64_t until) {
  ask_for(first_strays_, until);
}

void Wishes::ask_for(ByNeed& strays, uint64_t until) {
  for (size_t i = 0; i < kMostPerOperator && !strays.empty() &&
       strays.begin()->first.first <= until;
       ++i) {
    Page* page = strays.begin()->second;
    remove_stray(*page);
    if (!page->resident) {
      page->was_stray = true;
      ask_for(page);
    }
  }
}

void Wishes::ask_for_all_strays() {
  work_ += strays_.size();
  first_strays_.clear();
  for (const auto& [need, page] : std::exchange(strays_, {})) {
    if (!page->resident) {
      page->was_stray = true;
      ask_for(page);
    }
  }
}

void Wishes::list(std::vector<Page*>& fetch, uint64_t until) {
  size_t come = 0; // and stay asked for
  size_t forgotten = 0;
  auto next = asked_.begin();
  while (next != asked_.end() && next->first.first <= until &&
         fetch.size() < kFetchesAtOnce && forgotten < kMostPerOperator) {
    ++work_;
    Page* page = next->second;
    bool to_fetch =
        !page->resident && !page->dropped; // a use makes it if dropped
    bool to_keep = page->resident && !fetch.empty() && come < kMostCome;
    if (to_fetch) {
      fetch.push_back(page);
      ++next;
    } else if (to_keep) {
      ++come;
      ++next;
    } else {
      next = asked_.erase(next);
      ++forgotten;
    }
  }
}

} // namespace at::cuda::lms
