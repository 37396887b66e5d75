// Replays a packed trace (see trace.h) from standard input:
//   lms-replay POLICY on|off STEP NAME=NUMBER...
// with what machine.h names of the machine. `on`: the policy may make bytes
// again. The policy `none` runs nothing: only the bounds are printed. STEP is
// the number of the one whose timeline is printed, from 0 on, `last` or `none`.

#include "report.h"

#include <cstdio>
#include <exception>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>

namespace {

constexpr int kFailure = 1;
constexpr int kNoPolicy = 2; // of that name; those there are on stderr

std::optional<size_t> parse_step(const std::string& word) {
  if (word == "none") {
    return std::nullopt;
  }
  return word == "last" ? lms_replay::kNone : std::stoul(word);
}

} // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(
        stderr, "usage: lms-replay POLICY on|off STEP NAME=NUMBER...\n");
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
        lms_replay::parse_machine({argv + 4, argv + argc});
    std::optional<at::cuda::lms::PolicyKind> policy;
    if (known) {
      policy = *known;
      policy->traits.makes_again &= std::string_view(argv[2]) == "on";
    }
    lms_replay::replay_and_report(
        std::cin, machine, policy ? &*policy : nullptr, parse_step(argv[3]));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return kFailure;
  }
}
