#pragma once

#include <ATen/cuda/detail/LMSCoreLayout.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace at::cuda::lms {

// The addresses from begin on, up to end.
struct Extent {
  uintptr_t begin = 0;
  uintptr_t end = 0;

  bool has(uintptr_t address) const {
    return address >= begin && address < end;
  }
};

// An allocation that the free lists could not serve.
struct Request {
  size_t bytes = 0; // rounded as the caching allocator rounds
  uintptr_t stream = 0; // the stream whose blocks can serve it
  // Bytes whose write-back was queued so far, and those of them that are done.
  uint64_t sent = 0;
  uint64_t drained = 0;
  uint64_t arrived = 0; // page-ins that have ended, see Page::arrives_at
  // It may wait for memory to drain while so many bytes are copied: where bytes
  // are made again there is something better than to wait for long.
  uint64_t patience = ~uint64_t{0};
  // Memory of just this size that is draining and is free before all other;
  // null: there is none.
  Page* draining = nullptr;
  // The page that is fetched ahead of its use into the memory; null: an
  // operator needs it now. What is used before that page must stay then.
  const Page* ahead = nullptr;
  // What is free for it is joined before it is served: see Note [Memory in
  // pieces].
  bool is_joined = false;
  // Where memory is being cleared for another request: what is free there is no
  // gap for this one. Empty: nowhere.
  Extent kept = {};
};

// Making again that is so many times as fast as a copy is not worth one: what
// is copied comes back late now and then.
constexpr uint32_t kMostCopied = 32;

struct Use {
  Page* page;
  bool writes;
  // How many times as long as making its bytes again a copy would have taken
  // since the use before. 0: they could not be made, or not in less time.
  uint8_t gain = 0;
};

// What is known by now of time on the device.
struct Clock {
  // The last mark that has passed (Actions::mark), and microseconds from the
  // one before to it.
  uint64_t mark = 0;
  double mark_us = 0;
  double copy_ns = 0; // nanoseconds that a byte takes to the host
};

// An operator that has been launched: the pages it read and wrote, and those
// it made (`writes`, never seen before).
struct Operator {
  uint64_t name = 0; // hash of its name
  // Bytes besides those of pages that were allocated at the operator's peak.
  size_t unmanaged = 0;
  std::vector<Use> uses;
  // Known while memory is short.
  Clock clock = {};
  uint32_t ns = 0; // nanoseconds that it takes; 0: it is not known
  bool may_wait = true; // the host, where it ends; else where the next one does
};

// While so many page-ins have not ended, none is begun ahead: they keep the
// link busy until the next operators are launched (Note [The host's lead]), and
// what is needed sooner than they are does not wait for many.
constexpr size_t kMostArriving = 16;

// A chunk of a list operator takes at most this share of the room there is:
// many fit, so that storages of the last ones can be evicted, and those of the
// next arrive, while one runs.
constexpr size_t kChunksInRoom = 32;

// A plan in the making that takes too long to be made with the device's lock
// held: see Policy::advance.
class Draft {
 public:
  Draft() = default;
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;
  virtual ~Draft() = default;

  // All that takes long, without the lock.
  virtual void compute() = 0;
};

// What is to be done after an operator, the evictions first.
struct Actions {
  std::vector<Page*> evict; // resident, not needed for long
  std::vector<Page*> drop; // as these, when their memory is needed
  std::vector<Page*> save; // resident, to be written back while they stay
  std::vector<Page*> fetch; // paged out, needed soon; in order of need
  std::shared_ptr<Draft> draft; // to be finished before the next operator
  std::shared_ptr<void> dropped; // to be let go without the device's lock
  uint64_t mark = 0; // when the device gets here is to be known; 0: it is not
};

// Decides what to evict and what to fetch, and when; moves nothing itself.
// Depends on no PyTorch type, so that the same decisions can be replayed on a
// recorded trace. Called with the device's lock held; not thread safe.
class Policy {
 public:
  virtual ~Policy() = default;

  // Bytes that pages may take together from now on.
  virtual void set_capacity(size_t /*bytes*/) {}

  // The caller may leave out an action that has become impossible or needless.
  virtual void on_operator(const Operator& op, Actions& actions) = 0;

  // A part of the work on a draft, a bounded one. False if nothing is left to
  // do, or if the draft is out of date. Until then compute is called, without
  // the lock, before each call, and the actions are done after it, since pages
  // may die before the next. Let go of the draft without the lock.
  virtual bool advance(Draft& /*draft*/, Actions& /*actions*/) {
    return false;
  }

  // Whether bytes may be made again, where that is faster than a copy.
  virtual bool makes_again() const {
    return false;
  }

  // Page::makes_at has changed.
  virtual void note_source(Page& page, uint64_t makes_at) {
    page.makes_at = makes_at;
  }

  // See Note [Hints].
  virtual void note_hint(Page& page, Hint hint) {
    page.hint = hint;
  }

  // The page is about to be destroyed. `gain`: see Use, since its last one.
  virtual void on_death(Page* /*page*/, uint8_t /*gain*/) {}

  // What runs from now on is of this job; of none in particular if it is 0.
  virtual void begin_turn(uint64_t /*job*/) {}
  // The iteration that begins now is the last one of the job's turn; then comes
  // that of `next`.
  virtual void announce_turn(uint64_t /*next*/) {}
  virtual void end_job(uint64_t /*job*/) {}

  // The pages to evict so that `request.bytes` bytes become free for its
  // stream, which are contiguous unless the request is joined. Empty if there
  // is no such set.
  virtual std::vector<Page*> choose_window(
      const Layout& layout,
      const Request& request) = 0;

  // The pages to evict so that whole segments of at least `bytes` in total
  // become free. Empty if there are not enough such segments.
  virtual std::vector<Page*> choose_segments(
      const Layout& layout,
      size_t bytes) = 0;
};

// Works on the actions' draft until it is finished, for callers that need no
// lock, and for drafts that take no time.
void finish_draft(Policy& policy, Actions& actions);

// What is done for a policy besides what it asks for.
struct Traits {
  bool blocks_host = false; // for the time of each copy
  bool keeps_copies = true; // on the host, of what is back on the device
  bool joins_memory = true; // makes one segment, moves storages aside
  bool makes_again = true; // bytes, where that is faster than a copy
  // After each operator all that is not pinned, and overwrites where it lay:
  // what passes so does not depend on what is resident.
  bool evicts_all = false;
};

// A policy is a source of its own and a row of the table in LMSCorePolicy.cpp.
// Rows that share a source can take each other's place while a program runs.
struct PolicyKind {
  std::string_view name;
  std::unique_ptr<Policy> (*make)();
  Traits traits;
};
std::unique_ptr<Policy> make_planned_policy();
std::unique_ptr<Policy> make_original_policy();

// Null if there is none of that name.
const PolicyKind* find_policy(std::string_view name);
std::string policy_names(); // for messages

} // namespace at::cuda::lms
