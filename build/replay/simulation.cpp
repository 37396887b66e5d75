#include "simulation.h"

#include <algorithm>
#include <stdexcept>

namespace lms_replay {
namespace {

using at::cuda::lms::kSmallSize;
using at::cuda::lms::Page;
using at::cuda::lms::rest_for_small;

bool is_small(size_t bytes) {
  return block_size(bytes) <= kSmallSize;
}

// Memory that storages which are not paged take.
struct SmallMemory {
  size_t peak = 0; // the most at once
  size_t when_short = 0; // when all storages first exceed the capacity
};

SmallMemory small_memory(const Trace& trace, size_t capacity) {
  SmallMemory small;
  size_t now = 0;
  size_t all = 0;
  bool is_short = false;
  for (const Event& event : trace.events) {
    const bool is_alloc = event.kind == EventKind::kAlloc;
    if (!is_alloc && event.kind != EventKind::kFree) {
      continue;
    }
    const size_t size = block_size(trace.bytes[event.index]);
    all = is_alloc ? all + size : all - size;
    if (is_small(trace.bytes[event.index])) {
      now = is_alloc ? now + size : now - size;
      small.peak = std::max(small.peak, now);
    }
    if (all > capacity && !is_short) {
      small.when_short = now;
      is_short = true;
    }
  }
  return small;
}

size_t less(size_t whole, size_t part) {
  return whole - std::min(whole, part);
}

// Bytes of the segment that the engine takes when memory first runs short.
// Where it takes none, that it has all that is pageable is as near.
size_t segment_size(
    const Trace& trace,
    const Machine& machine,
    const at::cuda::lms::Traits& traits) {
  const SmallMemory small = small_memory(trace, machine.capacity);
  if (!traits.joins_memory || small.peak == 0) {
    return less(machine.capacity, small.peak);
  }
  const size_t rest = rest_for_small(machine.capacity, small.when_short);
  return less(machine.capacity, std::max(rest, small.peak));
}

// Pieces of work that a stream holds before a launch blocks, as CUDA has it.
constexpr size_t kStreamDepth = 1024;

} // namespace

Simulation::Simulation(
    const Trace& trace,
    const Machine& machine,
    const at::cuda::lms::PolicyKind& policy)
    : trace_(trace),
      machine_(machine),
      policy_(policy.make()),
      traits_(policy.traits),
      memory_(segment_size(trace, machine, traits_)),
      pages_(trace.bytes.size()),
      link_(machine) {
  for (size_t i = 0; i < pages_.size(); ++i) {
    pages_[i].id = i + 1;
    pages_[i].bytes = trace.bytes[i];
    pages_[i].is_small = is_small(trace.bytes[i]);
  }
  policy_->set_capacity(memory_.layout().reserved());
}

Totals Simulation::run(const Measured& measured) {
  Mark start;
  for (event_ = 0; event_ < trace_.events.size(); ++event_) {
    if (event_ == measured.first_event) {
      start = mark();
    }
    play(trace_.events[event_]);
  }
  return since(start);
}

void Simulation::play(const Event& event) {
  switch (event.kind) {
    case EventKind::kAlloc:
      prepare();
      allocate(pages_[event.index]);
      break;
    case EventKind::kFree:
      free(pages_[event.index]);
      break;
    case EventKind::kOperator:
      prepare();
      launch();
      break;
    case EventKind::kStep:
      break;
  }
}

// --- operators ---

// Pins what the next operator uses and fetches what of it is paged out.
void Simulation::prepare() {
  if (is_prepared_ || next_operator_ == trace_.operator_count()) {
    return;
  }
  is_prepared_ = true;
  for (const TraceUse& use : trace_.uses_of(next_operator_)) {
    pages_[use.storage].is_pinned = true;
    pages_[use.storage].evictable = false;
  }
  if (fetch_arguments()) {
    evict_all(); // what is pinned may stand in the way of the rest
    if (const Paged* page = fetch_arguments()) {
      fail(*page);
    }
  }
}

// Returns the argument that finds no room, null if there is none such.
const Paged* Simulation::fetch_arguments() {
  for (const TraceUse& use : trace_.uses_of(next_operator_)) {
    Paged& page = pages_[use.storage];
    if (page.is_alive && !page.resident && !page_in(page, /*ahead=*/false)) {
      return &page;
    }
  }
  return nullptr;
}

void Simulation::wait_for_memory_and_arguments() {
  Time start = 0;
  enqueue(memory_pending_.size());
  for (const CopyId copy : memory_pending_) {
    start = std::max(start, link_.end_of(copy));
  }
  memory_pending_.clear();
  Stall cause = Stall::kMemory;
  Time held_up = 0;
  for (const TraceUse& use : trace_.uses_of(next_operator_)) {
    const Paged& page = pages_[use.storage];
    const Time arrival = link_.end_of(page.arrival);
    if (arrival > start) {
      start = arrival;
      cause = page.is_prefetched ? Stall::kLate : Stall::kDemanded;
      held_up = link_.waited_for_memory(page.arrival);
    }
  }
  stall_until(std::min(start, totals_.time + held_up), Stall::kMemory);
  stall_until(start, cause);
}

void Simulation::launch() {
  wait_for_memory_and_arguments();
  const TraceOperator& op = trace_.operators[next_operator_];
  host_ += machine_.host_per_operator;
  stall_until(host_, Stall::kHost);
  computing_.push_back({totals_.time, totals_.time + op.duration});
  totals_.time += op.duration;
  enqueue(op.duration > 0 ? 1 : 0); // a view launches nothing

  at::cuda::lms::Operator seen;
  seen.name = op.name;
  for (const TraceUse& use : trace_.uses_of(next_operator_)) {
    Paged& page = pages_[use.storage];
    page.is_pinned = false;
    if (page.is_small) {
      continue;
    }
    page.evictable = true;
    page.clean = page.clean && !use.writes;
    seen.uses.push_back({&page, use.writes});
  }
  ++next_operator_;
  is_prepared_ = false;
  reap();
  at::cuda::lms::Actions actions;
  policy_->on_operator(seen, actions);
  at::cuda::lms::finish_draft(*policy_, actions);
  obey(actions);
  keep_lead(seen);
}

// See Note [The host's lead].
void Simulation::keep_lead(const at::cuda::lms::Operator& op) {
  if (arriving_.empty() && draining_.empty()) {
    lead_.clear();
    return;
  }
  if (lead_.add(op)) {
    const auto overtaken = lead_.put(totals_.time);
    enqueue(1); // an event
    note_arrivals();
    host_ = std::max(host_, overtaken.value_or(0));
  }
}

void Simulation::obey(const at::cuda::lms::Actions& actions) {
  for (Page* page : actions.evict) {
    if (page->resident && page->evictable) {
      evict_early(paged(page));
    }
  }
  note_arrivals();
  for (Page* page : actions.fetch) {
    // What is needed later must not take the room of what is needed first.
    if (arriving_.size() >= at::cuda::lms::kMostArriving ||
        (!page->resident && !page_in(paged(page), /*ahead=*/true))) {
      break;
    }
  }
}

void Simulation::stall_until(Time time, Stall cause) {
  if (time > totals_.time) {
    totals_.stalls[static_cast<size_t>(cause)] += time - totals_.time;
    totals_.time = time;
  }
  if (traits_.blocks_host) {
    host_ = totals_.time;
  }
}

// A copy is several pieces of work of its stream: it waits for operators and
// for other copies, and begins and ends with an event. The host waits where too
// many have not ended.
void Simulation::enqueue_copy(Direction direction, CopyId copy, size_t waits) {
  constexpr size_t kPieces = 4; // of any copy
  auto& queued = queued_copies_[static_cast<size_t>(direction)];
  queued.insert(queued.end(), kPieces + waits, copy);
  while (queued.size() > kStreamDepth) {
    host_ = std::max(host_, link_.end_of(queued.front()));
    queued.pop_front();
  }
}

// Pieces of work that end now, on the compute stream. The host waits where too
// many have not ended.
void Simulation::enqueue(size_t pieces) {
  for (; pieces > 0; --pieces) {
    queued_.push_back(totals_.time);
    if (queued_.size() > kStreamDepth) {
      host_ = std::max(host_, queued_.front());
      queued_.pop_front();
    }
  }
}

// --- storages ---

void Simulation::allocate(Paged& page) {
  page.is_alive = true;
  if (page.is_small) {
    allocate_small(page);
    return;
  }
  const auto place = obtain(page, /*ahead=*/false);
  if (!place) {
    fail(page);
  }
  memory_pending_.insert(
      memory_pending_.end(), place->pending.begin(), place->pending.end());
  settle(page, place->address);
}

void Simulation::allocate_small(Paged& page) {
  page.resident = true;
  small_taken_ += block_size(page.bytes);
  if (small_taken_ > machine_.capacity) {
    const size_t missing = small_taken_ - machine_.capacity;
    throw OutOfMemory(
        trace_.events[event_].line, block_size(page.bytes), missing);
  }
}

void Simulation::free(Paged& page) {
  page.is_alive = false;
  if (page.is_small) {
    small_taken_ -= block_size(page.bytes);
    return;
  }
  policy_->on_death(&page);
  page.evictable = false;
  if (page.resident) {
    page.resident = false;
    memory_.release(page.address, {page.arrival});
  }
}

void Simulation::settle(Paged& page, uintptr_t address) {
  page.address = address;
  page.resident = true;
  page.evictable = !page.is_pinned;
  memory_.set_page(address, &page);
}

// --- results ---

void Simulation::fail(const Paged& page) {
  const size_t wanted = block_size(page.bytes);
  const size_t window = std::min(memory_.largest_window(), wanted);
  throw OutOfMemory(trace_.events[event_].line, wanted, wanted - window);
}

Simulation::Mark Simulation::mark() const {
  return {totals_, link_.count()};
}

Totals Simulation::since(const Mark& mark) {
  Totals totals = totals_;
  totals.time -= mark.totals.time;
  totals.in_bytes -= mark.totals.in_bytes;
  totals.out_bytes -= mark.totals.out_bytes;
  totals.moved_bytes -= mark.totals.moved_bytes;
  measure_copies(mark.copies, totals);
  for (size_t cause = 0; cause < kStallCauses; ++cause) {
    totals.stalls[cause] -= mark.totals.stalls[cause];
  }
  return totals;
}

// What the copies after the first `skipped` took, and the part within the
// operators.
void Simulation::measure_copies(size_t skipped, Totals& totals) {
  for (const auto& copies : link_.intervals(skipped)) {
    auto first = computing_.begin();
    for (const Interval& copy : copies) {
      totals.copying += copy.end - copy.begin;
      while (first != computing_.end() && first->end <= copy.begin) {
        ++first;
      }
      for (auto op = first; op != computing_.end() && op->begin < copy.end;
           ++op) {
        totals.hidden +=
            std::min(copy.end, op->end) - std::max(copy.begin, op->begin);
      }
    }
  }
}

} // namespace lms_replay
