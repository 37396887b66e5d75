#pragma once

#include <ATen/cuda/detail/LMSCoreReclaim.h>
#include <ATen/cuda/detail/LMSCoreRelocation.h>

#include <condition_variable>
#include <vector>

namespace at::cuda::lms {

// Page-ins: on demand, and ahead of their use. Called without the mutex, for
// pages that are pinned, so that they stay once they are here.
class Fetcher {
 public:
  Fetcher(
      Books& books,
      Residence& residence,
      Reclaimer& reclaimer,
      Relocator& relocator,
      std::condition_variable& arrived)
      : books_(books),
        residence_(residence),
        reclaimer_(reclaimer),
        relocator_(relocator),
        arrived_(arrived) {}

  // Waits while the page is arriving. True if it is resident then.
  bool wait_for(PageEntry* page);
  // Brings the page unless it is there. Throws what World::allocate throws.
  // False if it was dropped: then the world makes it.
  bool fetch(PageEntry* page);
  // The caller makes the page, or true is not returned: somebody has made it.
  bool begin_making(PageEntry* page);
  // It is put back, or stays dropped.
  void end_making() {
    arrived_.notify_all();
  }

  // Starts page-ins that no operator needs yet, in order, as far as there is
  // room for them. Drops the pager's own pins on the pages.
  void fetch_ahead(const std::vector<PageEntry*>& pages) noexcept;

 private:
  bool wait_for(PageEntry* page, Lock& lock);
  bool try_ahead(PageEntry* page);
  bool choose(PageEntry* page, Eviction& eviction);
  void bring_to_host(PageEntry* page);
  bool complete(PageEntry* page, bool is_ahead);

  Books& books_;
  Residence& residence_;
  Reclaimer& reclaimer_;
  Relocator& relocator_;
  std::condition_variable& arrived_; // a page is kArriving no more
};

} // namespace at::cuda::lms
