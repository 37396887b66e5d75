#pragma once

#include "machine.h"
#include "trace.h"

#include <cstddef>

namespace lms_replay {

// What the operators of the measured part take, in picoseconds.
Time compute_time(const Trace& trace, const Measured& measured);

struct Traffic {
  size_t in_bytes = 0;
  size_t out_bytes = 0;
};

// The bytes that farthest-next-use eviction with full knowledge of the trace
// moves in its measured part, on `capacity` bytes of memory that never
// fragments. Whole pages; a clean page is evicted without a
// copy, one that is not used again vanishes. Belady, IBM Systems Journal 5(2),
// 1966.
Traffic belady(const Trace& trace, size_t capacity, const Measured& measured);

// The least time, in picoseconds, that the measured part takes on any engine
// that obeys program order: docs/traces.md proves it.
double ordered_floor(
    const Trace& trace,
    const Machine& machine,
    const Measured& measured);

} // namespace lms_replay
