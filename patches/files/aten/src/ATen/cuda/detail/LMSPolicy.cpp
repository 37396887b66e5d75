#include <ATen/cuda/detail/LMSPolicy.h>

#include <ATen/cuda/detail/LMSPlannedPolicy.h>
#include <ATen/cuda/detail/LMSSpace.h>

#include <utility>

namespace at::cuda::lms {
namespace {

class LeastRecentlyUsed final : public Policy, private Ranking {
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

void finish_draft(Policy& policy, Actions& actions) {
  const std::shared_ptr<Draft> draft = std::move(actions.draft);
  bool goes_on = draft != nullptr;
  while (goes_on) {
    draft->compute();
    goes_on = policy.advance(*draft, actions);
  }
}

std::unique_ptr<Policy> make_policy(std::string_view name) {
  if (name == "planned") {
    return std::make_unique<PlannedPolicy>();
  }
  if (name == "original") {
    return std::make_unique<LeastRecentlyUsed>();
  }
  return nullptr;
}

} // namespace at::cuda::lms
