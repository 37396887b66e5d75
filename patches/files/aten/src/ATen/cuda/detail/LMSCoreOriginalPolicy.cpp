#include <ATen/cuda/detail/LMSCorePolicy.h>

#include <ATen/cuda/detail/LMSCoreSpace.h>

#include <memory>
#include <vector>

namespace at::cuda::lms {
namespace {

// Fetches on demand only and evicts what was used least recently, counting free
// neighbours as part of the space an eviction wins.
class OriginalPolicy final : public Policy, private Ranking {
 public:
  void on_operator(const Operator& op, Actions& /*actions*/) override {
    ++now_;
    for (const Use& use : op.uses) {
      use.page->last_use = now_;
    }
  }

  std::vector<Page*> choose_window(const Layout& layout, const Request& request)
      override {
    return cheapest_window(layout, request, *this, /*hand=*/nullptr);
  }

  std::vector<Page*> choose_segments(const Layout& layout, size_t bytes)
      override {
    return cheapest_segments(layout, bytes, *this);
  }

 private:
  Cost cost_of(const Page& page) const override {
    return {page.last_use, 0, page.bytes};
  }

  uint64_t now_ = 0; // operators seen
};

} // namespace

std::unique_ptr<Policy> make_original_policy() {
  return std::make_unique<OriginalPolicy>();
}

} // namespace at::cuda::lms
