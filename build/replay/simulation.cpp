#include "simulation.h"

#include <algorithm>
#include <utility>

namespace lms_replay {
namespace {

using at::cuda::lms::Freed;
using at::cuda::lms::kSmallSize;
using at::cuda::lms::Lock;
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

} // namespace

Simulation::Simulation(
    const Trace& trace,
    const Machine& machine,
    const at::cuda::lms::PolicyKind& policy)
    : trace_(trace),
      machine_(machine),
      world_(machine, policy.traits),
      pager_(world_, /*device=*/0, policy.make()),
      pages_(trace.bytes.size()) {
  world_.start(pager_, segment_size(trace, machine, policy.traits));
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
  if (fetch_arguments()) {
    {
      Freed freed(pager_.books.contention);
      const Lock lock(pager_.books.mutex);
      unpin(freed);
    }
    // What is pinned may stand in the way of the rest.
    pager_.reclaimer.reclaim({}, at::cuda::lms::Scope::kAll, true);
    if (const Page* page = fetch_arguments()) {
      fail(page->bytes);
    }
  }
}

// Returns the argument that finds no room, null if there is none such.
const Simulation::Page* Simulation::fetch_arguments() {
  std::vector<std::pair<Page*, bool>> absent;
  {
    const Lock lock(pager_.books.mutex);
    for (const TraceUse& use : trace_.uses_of(next_operator_)) {
      Page* page = pages_[use.storage].get();
      if (!page) {
        continue;
      }
      pager_.pin(page);
      pinned_.push_back(page);
      if (page->resident) {
        pager_.residence.note_access(page, use.writes, page->home);
      } else {
        absent.emplace_back(page, use.writes);
      }
    }
  }
  for (const auto& [page, writes] : absent) {
    try {
      pager_.fetcher.fetch(page);
    } catch (const NoRoom&) {
      return page;
    }
    const Lock lock(pager_.books.mutex);
    pager_.residence.note_access(page, writes, page->home);
  }
  return nullptr;
}

// With the pager's mutex.
void Simulation::unpin(Freed& freed) {
  auto next = pinned_.begin();
  pager_.unpin(
      [&] { return next == pinned_.end() ? nullptr : *next++; }, freed);
  pinned_.clear();
}

void Simulation::launch() {
  const TraceOperator& op = trace_.operators[next_operator_];
  world_.launch(op.duration);
  at::cuda::lms::Pager::Sequel sequel(pager_.books);
  {
    const Lock lock(pager_.books.mutex);
    operator_.name = op.name;
    operator_.uses.clear();
    for (const TraceUse& use : trace_.uses_of(next_operator_)) {
      if (Page* page = pages_[use.storage].get()) {
        operator_.uses.push_back({page, use.writes});
      }
    }
    unpin(sequel.freed);
    pager_.follow(operator_, /*stream=*/nullptr, sequel);
  }
  ++next_operator_;
  is_prepared_ = false;
  pager_.complete(sequel);
  pager_.wait_for_device(sequel);
  if (world_.traits().evicts_all) {
    pager_.reclaimer.reclaim({}, at::cuda::lms::Scope::kAll, true);
  }
}

// --- storages ---

void Simulation::allocate(size_t storage) {
  const size_t bytes = trace_.bytes[storage];
  if (is_small(bytes)) {
    allocate_small(storage);
    return;
  }
  auto page = std::make_unique<Page>(/*home=*/nullptr);
  page->bytes = bytes;
  try {
    page->memory = world_.allocate_for_operator(bytes);
  } catch (const NoRoom&) {
    fail(bytes);
  }
  const Lock lock(pager_.books.mutex);
  pager_.residence.begin(
      page.get(), pager_.books.map.block_of(page->memory.get()));
  for (const TraceUse& use : trace_.uses_of(next_operator_)) {
    if (use.storage == storage) {
      pager_.pin(page.get());
      pinned_.push_back(page.get());
    }
  }
  pages_[storage] = std::move(page);
}

void Simulation::allocate_small(size_t storage) {
  small_taken_ += block_size(trace_.bytes[storage]);
  if (small_taken_ > machine_.capacity) {
    throw OutOfMemory(
        trace_.events[event_].line,
        block_size(trace_.bytes[storage]),
        small_taken_ - machine_.capacity);
  }
}

void Simulation::free(size_t storage) {
  if (is_small(trace_.bytes[storage])) {
    small_taken_ -= block_size(trace_.bytes[storage]);
    return;
  }
  Freed freed(pager_.books.contention);
  const Lock lock(pager_.books.mutex);
  Page* page = pages_[storage].release();
  if (page->state == Page::State::kResident) {
    pager_.residence.free_while_used(page, freed);
  }
  pager_.books.policy->on_death(page);
  pager_.residence.end(page, freed);
}

// --- results ---

void Simulation::fail(size_t bytes) {
  const size_t wanted = block_size(bytes);
  const size_t window = std::min(world_.memory().largest_window(), wanted);
  throw OutOfMemory(trace_.events[event_].line, wanted, wanted - window);
}

// From the beginning on.
Totals Simulation::totals() const {
  const auto& stats = pager_.books.stats;
  Totals totals;
  totals.time = world_.now();
  totals.in_bytes = static_cast<size_t>(stats.paged_in.bytes);
  totals.out_bytes = static_cast<size_t>(stats.paged_out.bytes);
  totals.moved_bytes = static_cast<size_t>(stats.moved.bytes);
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
