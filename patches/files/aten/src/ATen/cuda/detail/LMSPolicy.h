#pragma once

#include <ATen/cuda/detail/LMSLayout.h>

#include <memory>
#include <vector>

namespace at::cuda::lms {

// An allocation that the free lists could not serve.
struct Request {
  size_t bytes = 0; // rounded as the caching allocator rounds
  uintptr_t stream = 0; // the stream whose blocks can serve it
};

// Decides what to evict and what to fetch, and when; moves nothing itself.
// Depends on no PyTorch type, so that the same decisions can be replayed on a
// recorded trace. Called with the device's lock held; not thread safe.
class Policy {
 public:
  virtual ~Policy() = default;

  // An operator is about to use `count` pages. Adds to `fetch` the paged-out
  // pages, besides those, whose bytes should start to come back now.
  virtual void on_operator(
      Page* const* pages,
      size_t count,
      std::vector<Page*>& fetch) = 0;

  // The pages to evict so that `request.bytes` contiguous bytes become free
  // for its stream. Empty if there is no such set.
  virtual std::vector<Page*> choose_window(
      const Layout& layout,
      const Request& request) = 0;

  // The pages to evict so that whole segments of at least `bytes` in total
  // become free. Empty if there are not enough such segments.
  virtual std::vector<Page*> choose_segments(
      const Layout& layout,
      size_t bytes) = 0;
};

// Fetches on demand only and evicts what was used least recently, counting
// free neighbours as part of the space an eviction wins.
std::unique_ptr<Policy> make_least_recently_used_policy();

} // namespace at::cuda::lms
