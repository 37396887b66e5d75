#pragma once

#include "simulation.h"

#include <istream>

namespace lms_replay {

// Runs the policy on the packed trace (see trace.h) and prints one JSON object:
// the results with the bounds to judge them by, or what the run ran out of.
void replay_and_report(
    std::istream& trace,
    const Machine& machine,
    at::cuda::lms::Policy& policy);

// The machine that words of the command line describe: capacity in bytes,
// bandwidths from host to device and back in bytes per second.
// Throws std::logic_error if they are no numbers.
Machine parse_machine(const char* const words[3]);

} // namespace lms_replay
