// Replays a packed trace (see trace.h) from standard input:
//   lms-replay POLICY on|off NAME=NUMBER...
// with what machine.h names of the machine. `on`: the policy may make bytes
// again. The policy `none` runs nothing: only the bounds are printed.

#include "report.h"

#include <cstdio>
#include <exception>
#include <iostream>
#include <optional>
#include <string_view>

namespace {

constexpr int kFailure = 1;
constexpr int kNoPolicy = 2; // of that name; those there are on stderr

} // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: lms-replay POLICY on|off NAME=NUMBER...\n");
    return kFailure;
  }
  try {
    const std::string_view name = argv[1];
    const auto* known = at::cuda::lms::find_policy(name);
    if (!known && name != "none") {
      std::fprintf(stderr, "%s\n", at::cuda::lms::policy_names().c_str());
      return kNoPolicy;
    }
    std::ios::sync_with_stdio(false);
    const lms_replay::Machine machine =
        lms_replay::parse_machine({argv + 3, argv + argc});
    std::optional<at::cuda::lms::PolicyKind> policy;
    if (known) {
      policy = *known;
      policy->traits.makes_again &= std::string_view(argv[2]) == "on";
    }
    lms_replay::replay_and_report(
        std::cin, machine, policy ? &*policy : nullptr);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return kFailure;
  }
}
