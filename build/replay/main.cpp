// Replays a packed trace (see trace.h) from standard input:
//   lms-replay POLICY CAPACITY H2D D2H
// with the capacity in bytes and the bandwidths in bytes per second.

#include "report.h"

#include <cstdio>
#include <exception>
#include <iostream>
#include <string_view>

namespace {

constexpr int kFailure = 1;
constexpr int kNoPolicy = 2;

} // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: lms-replay POLICY CAPACITY H2D D2H\n");
    return kFailure;
  }
  const std::string_view name = argv[1];
  const auto policy = at::cuda::lms::make_policy(name);
  if (!policy) {
    return kNoPolicy;
  }
  try {
    std::ios::sync_with_stdio(false);
    lms_replay::Machine machine = lms_replay::parse_machine(argv + 2);
    machine.blocks_host = name == "original";
    lms_replay::replay_and_report(std::cin, machine, *policy);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return kFailure;
  }
}
