#pragma once

#include "recipes.h"
#include "trace.h"
#include "world.h"

#include <memory>
#include <stdexcept>
#include <vector>

namespace lms_replay {

// Note [Replay]
// ~~~~~~~~~~~~~
// A trace is played to the engine's own pager, on a device in virtual time
// (Note [Virtual time]), as the engine plays a program to it: an allocation
// belongs to the operator after it. Before the first of them the operator's
// arguments are pinned and those paged out are fetched; after the operator they
// are unpinned and the policy is asked. If they fit together but not where they
// are, all are evicted once. Bytes that were dropped are made again: see Note
// [Making again in a replay].
//
// Limitations: storages of at most 1 MiB stay on the device and take no part
// in paging (the caching allocator keeps them in segments of their own); the
// most that they take together is set aside, or what the engine leaves for them
// beside its one segment if that is more.

// Sums since the start of the measured part.
struct Totals {
  Time time = 0;
  size_t in_bytes = 0;
  size_t out_bytes = 0;
  size_t moved_bytes = 0; // within the device
  size_t read_bytes = 0; // from disk
  size_t written_bytes = 0; // to disk
  size_t made_bytes = 0; // again
  Time making = 0; // of the operators that did
  Time copying = 0; // of both engines
  Time hidden = 0; // the part of it during which an operator ran
  std::array<Time, kStallCauses> stalls{}; // by Stall
};

// What one operator uses does not fit.
struct OutOfMemory : std::runtime_error {
  OutOfMemory(size_t line, size_t wanted, size_t missing)
      : std::runtime_error("out of memory"),
        line(line),
        wanted(wanted),
        missing(missing) {}

  size_t line;
  size_t wanted; // contiguous bytes
  size_t missing; // of these, when all that can be evicted is
};

class Simulation {
 public:
  Simulation(
      const Trace& trace,
      const Machine& machine,
      const at::cuda::lms::PolicyKind& policy,
      Timeline* timeline = nullptr);

  // Throws OutOfMemory.
  Totals run(const Measured& measured);
  Link& link() {
    return world_.link();
  }

 private:
  // Where the measured part begins in what is recorded.
  struct Mark {
    Totals totals;
    size_t copies = 0;
  };

  void play(const Event& event);
  void prepare();
  void describe(const TraceOperator& op);
  void allocate(size_t storage);
  void allocate(TracePage& page);
  void allocate_small(size_t storage);
  void free(size_t storage);
  void launch();
  [[noreturn]] void fail(const NoRoom& lack);
  Totals totals() const;
  Mark mark();
  Totals since(const Mark& mark);
  void measure_copies(size_t skipped, Totals& totals);

  const Trace& trace_;
  const Machine machine_;
  Timeline* const timeline_; // null: nobody asks for it
  VirtualWorld world_;
  at::cuda::lms::Pager pager_;
  Recipes recipes_;
  Pages pages_;
  Accesses pinned_; // by the next operator
  std::vector<uint32_t> allocated_; // since the last one
  at::cuda::lms::Operator operator_; // scratch
  size_t event_ = 0; // being played
  size_t next_operator_ = 0;
  size_t small_taken_ = 0; // bytes of memory that is not paged
  bool is_prepared_ = false;
};

} // namespace lms_replay
