#include <ATen/cuda/detail/LMSCorePolicy.h>

#include <algorithm>
#include <array>
#include <utility>

namespace at::cuda::lms {
namespace {

constexpr Traits kOriginal{
    /*blocks_host=*/true,
    /*keeps_copies=*/false,
    /*joins_memory=*/false,
    /*makes_again=*/false,
    /*evicts_all=*/false};
constexpr Traits kChaos{
    /*blocks_host=*/false,
    /*keeps_copies=*/true,
    /*joins_memory=*/false,
    /*makes_again=*/true,
    /*evicts_all=*/true};

constexpr std::array<PolicyKind, 3> kPolicies{{
    {"planned", make_planned_policy, {}},
    {"original", make_original_policy, kOriginal},
    {"chaos", make_planned_policy, kChaos},
}};

} // namespace

void finish_draft(Policy& policy, Actions& actions) {
  const std::shared_ptr<Draft> draft = std::move(actions.draft);
  bool goes_on = draft != nullptr;
  while (goes_on) {
    draft->compute();
    goes_on = policy.advance(*draft, actions);
  }
}

const PolicyKind* find_policy(std::string_view name) {
  const auto* found = std::find_if(
      kPolicies.begin(), kPolicies.end(), [&](const PolicyKind& kind) {
        return kind.name == name;
      });
  return found == kPolicies.end() ? nullptr : found;
}

std::string policy_names() {
  std::string names;
  for (const PolicyKind& kind : kPolicies) {
    names += (names.empty() ? "" : ", ") + std::string(kind.name);
  }
  return names;
}

} // namespace at::cuda::lms
