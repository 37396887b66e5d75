#pragma once

#include "simulation.h"

#include <istream>
#include <optional>

namespace lms_replay {

// Prints one JSON object: the bounds of the packed trace (see trace.h) and,
// unless the policy is null, the results of running it, or what that ran out
// of. `step`: what happened in this one, too.
void replay_and_report(
    std::istream& trace,
    const Machine& machine,
    const at::cuda::lms::PolicyKind* policy,
    std::optional<size_t> step = std::nullopt);

} // namespace lms_replay
