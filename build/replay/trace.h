#pragma once

#include <cstddef>
#include <cstdint>
#include <istream>
#include <vector>

namespace lms_replay {

using Time = int64_t; // picoseconds of virtual time; holds 100 days

enum class EventKind : int64_t {
  kAlloc = 1,
  kFree = 2,
  kStep = 3,
  kOperator = 4
};

// One line of the trace after the header.
struct Event {
  EventKind kind;
  size_t index; // of the storage or of the operator; 0 for a step
  size_t line;
};

struct TraceUse {
  uint32_t storage;
  bool writes;
  bool again; // the operator can make again what it has written
};

struct TraceOperator {
  uint64_t name = 0; // hash
  Time duration = 0;
  bool continues = false; // it may be a further chunk of the one before
  size_t first_use = 0; // in Trace::uses; the next operator's is the end
};

// A checked trace: whoever wrote it has found that no storage is used before
// its allocation or after its release. Storages are numbered in order of
// allocation.
struct Trace {
  std::vector<Event> events;
  std::vector<size_t> bytes; // of each storage
  std::vector<TraceOperator> operators; // and one past the last, without uses
  std::vector<TraceUse> uses; // each storage once per operator

  // The uses of an operator, for a range-based loop.
  struct Uses {
    const TraceUse* first;
    const TraceUse* last;
    const TraceUse* begin() const {
      return first;
    }
    const TraceUse* end() const {
      return last;
    }
  };
  Uses uses_of(size_t op) const {
    return {
        uses.data() + operators[op].first_use,
        uses.data() + operators[op + 1].first_use};
  }
  size_t operator_count() const {
    return operators.size() - 1;
  }
};

// Reads the trace as scripts/lms_cli/trace/reader.py packs it: 64-bit words in
// the machine's byte order, an event's kind first, then
//   kAlloc     bytes
//   kFree      storage
//   kStep
//   kOperator  name, duration, whether it may be a further chunk of the list
//              operator before it, number of uses, and each as
//              4 * storage + 2 * again + writes
// Throws std::runtime_error if it ends in the middle of an event.
Trace read_trace(std::istream& in);

// The trace with chunks of list operators joined as long as what one uses is at
// most `most` bytes: they are recorded in smaller ones than an engine needs.
Trace with_chunks_joined(const Trace& trace, size_t most);

// Something in it can be made again.
bool has_again(const Trace& trace);

// The part of a trace that is measured: the steps by which an engine that
// learns has learnt, after the third; if it also tries whether to copy all
// (`tries`), after the sixteenth where there are more. All of it where
// there are no such steps.
struct Measured {
  size_t first_event = 0;
  size_t steps = 1;
};
Measured measured_part(const Trace& trace, bool tries);

} // namespace lms_replay
