#include "simulation.h"

#include <algorithm>
#include <utility>

namespace lms_replay {
namespace {

using at::cuda::lms::Lock;
using at::cuda::lms::rest_for_small;

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
    if (!is_paged(trace.bytes[event.index])) {
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

} // namespace

Simulation::Simulation(
    const Trace& trace,
    const Machine& machine,
    const at::cuda::lms::PolicyKind& policy,
    Timeline* timeline)
    : trace_(trace),
      machine_(machine),
      timeline_(timeline),
      world_(machine, policy.traits, timeline),
      pager_(world_, /*device=*/0, policy.make()),
      recipes_(trace, world_, pager_),
      pages_(trace.bytes.size()) {
  world_.start(pager_, recipes_, segment_size(trace, machine, policy.traits));
}

Totals Simulation::run(const Measured& measured) {
  Mark start;
  for (event_ = 0; event_ < trace_.events.size(); ++event_) {
    if (event_ == measured.first_event) {
      start = mark();
    }
    play(trace_.events[event_]);
  }
  if (timeline_) {
    timeline_->ended(world_.now());
  }
  return since(start);
}

void Simulation::play(const Event& event) {
  switch (event.kind) {
    case EventKind::kAlloc:
      prepare();
      allocate(event.index);
      break;
    case EventKind::kFree:
      free(event.index);
      break;
    case EventKind::kOperator:
      prepare();
      launch();
      break;
    case EventKind::kStep:
      if (timeline_) {
        timeline_->began_step(world_.now());
      }
      break;
  }
}

// --- operators ---

// Pins what the next operator uses and brings what of it is not there.
void Simulation::prepare() {
  if (is_prepared_ || next_operator_ == trace_.operator_count()) {
    return;
  }
  is_prepared_ = true;
  for (const TraceUse& use : trace_.uses_of(next_operator_)) {
    if (TracePage* page = pages_[use.storage].get()) {
      pinned_.push_back({page, use.writes});
    }
  }
  try {
    recipes_.pin(pinned_);
  } catch (const NoRoom& lack) {
    fail(lack);
  }
}

void Simulation::launch() {
  const TraceOperator& op = trace_.operators[next_operator_];
  world_.launch(next_operator_, op.duration);
  at::cuda::lms::Pager::Sequel sequel(pager_.books);
  {
    const Lock lock(pager_.books.mutex);
    describe(op);
    recipes_.unpin(pinned_, sequel.freed);
    recipes_.keep(next_operator_, pages_, allocated_);
    pager_.follow(operator_, /*stream=*/nullptr, sequel);
  }
  pinned_.clear();
  allocated_.clear();
  ++next_operator_;
  is_prepared_ = false;
  pager_.complete(sequel);
  pager_.wait_for_device(sequel);
  if (world_.traits().evicts_all) {
    pager_.reclaimer.reclaim({}, at::cuda::lms::Scope::kAll, true);
  }
}

// What the policy is told of it. With the pager's mutex.
void Simulation::describe(const TraceOperator& op) {
  operator_.name = op.name;
  operator_.uses.clear();
  for (const TraceUse& use : trace_.uses_of(next_operator_)) {
    TracePage* page = pages_[use.storage].get();
    if (page->is_paged) {
      const uint32_t gain = use.writes ? 0 : recipes_.gain(*page);
      operator_.uses.push_back({page, use.writes, static_cast<uint8_t>(gain)});
    }
  }
  size_t made = 0;
  for (const uint32_t storage : allocated_) {
    made += pages_[storage]->block ? pages_[storage]->block->size : 0;
  }
  operator_.unmanaged = pager_.books.map.end_operator(made);
  recipes_.tell_times(next_operator_, operator_);
}

// --- storages ---

void Simulation::allocate(size_t storage) {
  const size_t bytes = trace_.bytes[storage];
  auto page = std::make_unique<TracePage>(
      static_cast<uint32_t>(storage), is_paged(bytes));
  page->bytes = bytes;
  if (page->is_paged) {
    allocate(*page);
  } else {
    allocate_small(storage);
  }
  allocated_.push_back(page->number);
  pages_[storage] = std::move(page);
}

void Simulation::allocate(TracePage& page) {
  try {
    page.memory = world_.allocate_for_operator(page.number, page.bytes);
  } catch (const NoRoom& lack) {
    fail(lack);
  }
  const Lock lock(pager_.books.mutex);
  pager_.residence.begin(&page, pager_.books.map.block_of(page.memory.get()));
  for (const TraceUse& use : trace_.uses_of(next_operator_)) {
    if (use.storage == page.number) {
      pager_.pin(&page);
      pinned_.push_back({&page, use.writes});
    }
  }
}

void Simulation::allocate_small(size_t storage) {
  small_taken_ += block_size(trace_.bytes[storage]);
  if (small_taken_ > machine_.capacity) {
    throw OutOfMemory(
        trace_.events[event_].line,
        block_size(trace_.bytes[storage]),
        small_taken_ - machine_.capacity);
  }
  if (timeline_) {
    timeline_->took_small(storage, world_.now());
  }
}

void Simulation::free(size_t storage) {
  const bool is_small = !is_paged(trace_.bytes[storage]);
  if (timeline_ && is_small) {
    timeline_->gave_back_small(storage, world_.now());
  }
  if (is_small) {
    small_taken_ -= block_size(trace_.bytes[storage]);
  }
  recipes_.end(std::move(pages_[storage]));
}

// --- results ---

void Simulation::fail(const NoRoom& lack) {
  throw OutOfMemory(trace_.events[event_].line, lack.wanted, lack.missing);
}

// From the beginning on.
Totals Simulation::totals() const {
  const auto& stats = pager_.books.stats;
  Totals totals;
  totals.time = world_.now();
  totals.in_bytes = static_cast<size_t>(stats.paged_in.bytes);
  totals.out_bytes = static_cast<size_t>(stats.paged_out.bytes);
  totals.moved_bytes = static_cast<size_t>(stats.moved.bytes);
  totals.read_bytes = static_cast<size_t>(stats.read_from_disk.bytes);
  totals.written_bytes = static_cast<size_t>(stats.written_to_disk.bytes);
  totals.made_bytes = static_cast<size_t>(stats.made.bytes);
  totals.making = recipes_.time();
  for (size_t cause = 0; cause < kStallCauses; ++cause) {
    totals.stalls[cause] = world_.stalled(static_cast<Stall>(cause));
  }
  return totals;
}

Simulation::Mark Simulation::mark() {
  return {totals(), world_.link().count()};
}

Totals Simulation::since(const Mark& mark) {
  Totals totals = this->totals();
  totals.time -= mark.totals.time;
  totals.in_bytes -= mark.totals.in_bytes;
  totals.out_bytes -= mark.totals.out_bytes;
  totals.moved_bytes -= mark.totals.moved_bytes;
  totals.read_bytes -= mark.totals.read_bytes;
  totals.written_bytes -= mark.totals.written_bytes;
  totals.made_bytes -= mark.totals.made_bytes;
  totals.making -= mark.totals.making;
  for (size_t cause = 0; cause < kStallCauses; ++cause) {
    totals.stalls[cause] -= mark.totals.stalls[cause];
  }
  measure_copies(mark.copies, totals);
  return totals;
}

// What the copies after the first `skipped` took, and the part within the
// operators.
void Simulation::measure_copies(size_t skipped, Totals& totals) {
  for (const auto& copies : world_.link().intervals(skipped)) {
    auto first = world_.computing().begin();
    for (const Interval& copy : copies) {
      totals.copying += copy.end - copy.begin;
      while (first != world_.computing().end() && first->end <= copy.begin) {
        ++first;
      }
      for (auto op = first;
           op != world_.computing().end() && op->begin < copy.end;
           ++op) {
        totals.hidden +=
            std::min(copy.end, op->end) - std::max(copy.begin, op->begin);
      }
    }
  }
}

} // namespace lms_replay
