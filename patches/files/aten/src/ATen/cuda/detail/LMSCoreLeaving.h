#pragma once

#include <ATen/cuda/detail/LMSCorePageTable.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

namespace at::cuda::lms {

// Note [Copy or make again]
// ~~~~~~~~~~~~~~~~~~~~~~~~~
// What leaves the device is copied while the link to the host is free, for that
// costs nothing. Where a page is to leave and more than kMostLeaving bytes are
// on their way already, it waits, if it can be made again. Two things may
// happen then. The link gets free: the page that is the dearest to make for its
// size is copied. Or its memory is needed: then the page is dropped, at once,
// the cheapest first, and made again with its next use. So the link is always
// busy with what is dear, and no allocation waits for it while there is
// something to drop.

// The pages that wait. With the mutex.
class Leaving {
 public:
  // Bytes: enough that the link is busy until the next operators are launched.
  static constexpr uint64_t kMostLeaving = uint64_t{128} << 20;

  // With a gain of so much a page is not worth a copy even if the link is free:
  // it would come back no faster.
  static constexpr uint32_t kMostCopied = 8;

  void add(PageEntry* page, uint32_t gain) {
    remove(page);
    page->gain = gain;
    waiting_.emplace(key(*page), page);
  }
  // It is used again, has left or is gone.
  void remove(PageEntry* page) {
    if (page->gain > 0) {
      waiting_.erase(key(*page));
      page->gain = 0;
    }
  }
  // The next one to be copied; null if there is none.
  PageEntry* first() const {
    return waiting_.empty() || is_never_copied(*waiting_.begin()->second)
        ? nullptr
        : waiting_.begin()->second;
  }
  bool is_never_copied(const Page& page) const {
    return page.gain >= kMostCopied;
  }

 private:
  using Key = std::pair<uint32_t, uint64_t>; // the dearest first
  static Key key(const PageEntry& page) {
    return {page.gain, page.id};
  }

  std::map<Key, PageEntry*> waiting_;
};

} // namespace at::cuda::lms
