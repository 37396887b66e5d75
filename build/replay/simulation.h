#pragma once

#include <ATen/cuda/detail/LMSPolicy.h>

#include "copies.h"
#include "memory.h"
#include "trace.h"

#include <array>
#include <deque>
#include <optional>
#include <stdexcept>
#include <vector>

namespace lms_replay {

// Note [Replay]
// ~~~~~~~~~~~~~
// Program order decides what happens, clocks decide when. The host runs ahead
// of the device and costs nothing, so the only clocks are those of the compute
// stream and of the two copy engines:
//  - An allocation belongs to the operator after it. Before the first of them
//    the operator's arguments are pinned and those paged out are fetched, as
//    the engine does; after the operator they are unpinned and the policy is
//    asked. If they fit together but not where they are, all leave once.
//  - A page-out starts when the work before it is done and its engine is free.
//    Its memory is held until then by a page of its own that is clean and
//    evictable ("leaving"). Whoever is given that memory earlier waits for the
//    copy: an operator for what is allocated, a page-in for its own memory.
//  - A page-in starts when the work before it is done, its engine is free, its
//    memory's earlier copies and the page-out of the same bytes have ended.
//  - A host-blocking machine (the original engine) computes nothing while it
//    copies, and always copies out.
// Limitations: storages of at most 1 MiB stay on the device and take no part
// in paging (the caching allocator keeps them in segments of their own); the
// most that they take together is set aside.

// Why an operator waited: for the last of what it needs to arrive. A page-in
// that itself waited for memory counts as memory for that long.
enum class Stall { kDemanded, kLate, kMemory };
constexpr size_t kStallCauses = 3;

// Sums since the start of the measured part.
struct Totals {
  Time time = 0;
  Time compute = 0;
  size_t in_bytes = 0;
  size_t out_bytes = 0;
  Time copying = 0; // of both engines
  Time hidden = 0; // the part of it during which an operator ran
  std::array<Time, kStallCauses> stalls{}; // by Stall
};

// A storage, or memory that is still being copied out, which has the id 0.
struct Paged : at::cuda::lms::Page {
  uintptr_t address = 0; // while resident
  Time arrival = 0; // end of its last page-in
  Time departure = 0; // end of its last page-out
  Time held_up = 0; // how long its last page-in waited for memory
  bool is_prefetched = false; // its last page-in was ahead of its use
  bool is_pinned = false; // by the next operator
  bool is_alive = false;
  bool is_small = false; // not paged
};

// What one operator uses does not fit.
struct OutOfMemory : std::runtime_error {
  OutOfMemory(size_t event, size_t wanted, size_t missing)
      : std::runtime_error("out of memory"),
        event(event),
        wanted(wanted),
        missing(missing) {}

  size_t event;
  size_t wanted; // contiguous bytes
  size_t missing; // of these, when all that may leave has left
};

class Simulation {
 public:
  Simulation(
      const Trace& trace,
      const Machine& machine,
      at::cuda::lms::Policy& policy);

  // Throws OutOfMemory.
  Totals run(const Measured& measured);

 private:
  // Where the measured part begins in what is recorded.
  struct Mark {
    Totals totals;
    size_t in_copies = 0;
    size_t out_copies = 0;
  };

  void play(const Event& event);
  void prepare();
  const Paged* fetch_arguments();
  void allocate(Paged& page);
  void allocate_small(Paged& page);
  void free(Paged& page);
  void wait_for_memory_and_arguments();
  void launch();
  void obey(const at::cuda::lms::Actions& actions);

  std::optional<Memory::Place> obtain(const Paged& page, bool ahead);
  bool page_in(Paged& page, bool ahead);
  Time page_out(Paged& page);
  void evict_early(Paged& page);
  void hand_over(Paged& page);
  void settle(Paged& page, uintptr_t address);
  void evict_all();
  at::cuda::lms::Page* first_leaving(size_t bytes);
  void reap();

  void stall_until(Time time, Stall cause);
  [[noreturn]] void fail(const Paged& page);
  Mark mark() const;
  Totals since(const Mark& mark) const;

  const Trace& trace_;
  const Machine machine_;
  at::cuda::lms::Policy& policy_;
  Memory memory_;
  std::vector<Paged> pages_; // by storage
  std::deque<Paged> leaving_; // in the order in which their copies end
  CopyEngine in_;
  CopyEngine out_;
  std::vector<Interval> computing_;
  Totals totals_; // its `time` is the compute stream's clock
  Time memory_ready_ = 0; // of what the next operator allocated
  size_t event_ = 0; // being played
  size_t next_operator_ = 0;
  uint64_t sent_ = 0; // bytes to the host
  size_t small_taken_ = 0; // bytes of memory that is not paged
  bool is_prepared_ = false;
};

} // namespace lms_replay
