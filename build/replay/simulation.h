#pragma once

#include <ATen/cuda/detail/LMSLead.h>
#include <ATen/cuda/detail/LMSPolicy.h>
#include <ATen/cuda/detail/LMSSpace.h>

#include "link.h"
#include "memory.h"
#include "trace.h"

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

namespace lms_replay {

// Note [Replay]
// ~~~~~~~~~~~~~
// Program order decides what happens, clocks decide when: the compute stream's,
// that of the link to the host with its two copy engines, and the host's, which
// runs ahead of the device as far as the depth of streams lets it:
//  - An allocation belongs to the operator after it. Before the first of them
//    the operator's arguments are pinned and those paged out are fetched, as
//    the engine does; after the operator they are unpinned and the policy is
//    asked. If they fit together but not where they are, all are evicted once.
//  - A page-out starts when the work before it is done and its engine is free.
//    Its memory is held until then by a page of its own that is clean and
//    evictable ("draining"). Whoever is given that memory earlier waits for the
//    copy: an operator for what is allocated, a page-in for its own memory.
//  - A page-in starts when the work before it is done, its engine is free, its
//    memory's earlier copies and the page-out of the same bytes have ended.
//  - Where free memory is only in pieces, pages are moved aside within the
//    device, as the engine does (Note [Moving storages aside]), by an engine
//    that has half of the memory's bandwidth and slows nothing down.
//  - What the engine knows of the copies is what has happened by the host's
//    clock, which is why that is kept: memory that has drained may count as
//    draining still.
//  - A host-blocking machine (the original engine) computes nothing while it
//    copies, always copies out and moves nothing aside.
// Limitations: storages of at most 1 MiB stay on the device and take no part
// in paging (the caching allocator keeps them in segments of their own); the
// most that they take together is set aside, or what the engine leaves for them
// beside its one segment if that is more.

// Why an operator waited: for the last of what it needs to arrive. A page-in
// that itself waited for memory counts as memory for that long; copies within
// the device count as page-ins. Or the host had not asked for it.
enum class Stall { kDemanded, kLate, kMemory, kHost };
constexpr size_t kStallCauses = 4;

// Sums since the start of the measured part.
struct Totals {
  Time time = 0;
  size_t in_bytes = 0;
  size_t out_bytes = 0;
  size_t moved_bytes = 0; // within the device
  Time copying = 0; // of both engines
  Time hidden = 0; // the part of it during which an operator ran
  std::array<Time, kStallCauses> stalls{}; // by Stall
};

// A storage, or draining memory.
struct Paged : at::cuda::lms::Page {
  uintptr_t address = 0; // while resident
  CopyId arrival = kNoCopy; // its last page-in
  CopyId write_back = kNoCopy; // its last page-out
  bool is_prefetched = false; // its last page-in was ahead of its use
  bool is_pinned = false; // by the next operator
  bool is_alive = false;
  bool is_small = false; // not paged
};

inline Paged& paged(at::cuda::lms::Page* page) {
  return *static_cast<Paged*>(page);
}

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
      const at::cuda::lms::PolicyKind& policy);

  // Throws OutOfMemory.
  Totals run(const Measured& measured);

 private:
  // Where the measured part begins in what is recorded.
  struct Mark {
    Totals totals;
    size_t copies = 0;
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
  void keep_lead(const at::cuda::lms::Operator& op);

  std::optional<Memory::Place> obtain(const Paged& page, bool ahead);
  void make_gap(const at::cuda::lms::Request& request);
  bool move_out_of(
      const at::cuda::lms::Clearing& clearing,
      Paged& page,
      const at::cuda::lms::Request& request);
  bool page_in(Paged& page, bool ahead);
  CopyIds page_out(Paged& page);
  void evict_early(Paged& page);
  void hand_over(Paged& page);
  void settle(Paged& page, uintptr_t address);
  void evict_all();
  Paged* first_draining();
  void note_arrivals();
  void reap();

  void enqueue(size_t pieces);
  void enqueue_copy(Direction direction, CopyId copy, size_t waits);
  void stall_until(Time time, Stall cause);
  [[noreturn]] void fail(const Paged& page);
  Mark mark() const;
  Totals since(const Mark& mark);
  void measure_copies(size_t skipped, Totals& totals);

  const Trace& trace_;
  const Machine machine_;
  const std::unique_ptr<at::cuda::lms::Policy> policy_;
  const at::cuda::lms::Traits traits_;
  Memory memory_;
  std::vector<Paged> pages_; // by storage
  std::deque<Paged> draining_; // in the order in which their copies end
  Link link_;
  std::vector<Interval> computing_;
  Totals totals_; // its `time` is the compute stream's clock
  Time host_ = 0; // the program's clock
  std::deque<Time> queued_; // ends of the compute stream's last pieces of work
  // By direction: the copies that the last pieces of work belong to.
  std::array<std::deque<CopyId>, kDirections> queued_copies_;
  CopyIds memory_pending_; // on what the next operator allocated
  size_t event_ = 0; // being played
  size_t next_operator_ = 0;
  uint64_t sent_ = 0; // bytes to the host
  at::cuda::lms::Lead<Time> lead_; // its marks are the ends of operators
  std::deque<CopyId> arriving_; // page-ins not known to have ended
  uint64_t arrived_ = 0; // page-ins known to have ended
  uintptr_t hand_ = 0; // see Note [Bounded search]
  size_t small_taken_ = 0; // bytes of memory that is not paged
  bool is_prepared_ = false;
};

} // namespace lms_replay
