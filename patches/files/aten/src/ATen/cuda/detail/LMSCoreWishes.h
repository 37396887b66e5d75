#pragma once

#include <ATen/cuda/detail/LMSCoreLayout.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace at::cuda::lms {

// The pages that are to come back to the device: those asked for, what is
// needed first at the front whenever it was asked for, and strays, which had to
// are evicted against the plan and come back shortly before their next use.
class Wishes {
 public:
  void ask_for(Page* page);
  // Whether it was asked for.
  bool ask_no_more_for(const Page& page);

  void add_stray(Page* page);
  void remove_stray(const Page& page);
  // Asks for the strays that are needed by then: for all, or for those that are
  // strays for the first time since their last use.
  void ask_for_strays(uint64_t until);
  void ask_for_first_strays(uint64_t until);

  void ask_for_all_strays();

  // Adds the pages that are to be fetched after an operator, of those that are
  // needed by `until`.
  void list(std::vector<Page*>& fetch, uint64_t until);

  // Steps so far, each one page in one of the lists.
  uint64_t work() const {
    return work_;
  }

 private:
  // By when it is needed, then by id: nothing depends on where a page happens
  // to be in host memory.
  using ByNeed = std::map<std::pair<uint64_t, uint64_t>, Page*>;

  void ask_for(ByNeed& strays, uint64_t until);

  ByNeed asked_;
  ByNeed strays_;
  ByNeed first_strays_; // those of them for the first time since their last use
  uint64_t work_ = 0;
};

} // namespace at::cuda::lms
