#include "simulation.h"

#include <algorithm>
#include <stdexcept>

namespace lms_replay {
namespace {

using at::cuda::lms::kMinBlockSize;
using at::cuda::lms::kSmallSize;
using at::cuda::lms::Page;
using at::cuda::lms::round_up;

size_t block_size(size_t bytes) {
  return round_up(std::max<size_t>(bytes, 1), kMinBlockSize);
}

bool is_small(size_t bytes) {
  return block_size(bytes) <= kSmallSize;
}

// The most memory that storages which are not paged take at once.
size_t set_aside(const Trace& trace) {
  size_t now = 0;
  size_t peak = 0;
  for (const Event& event : trace.events) {
    const bool is_alloc = event.kind == EventKind::kAlloc;
    if (!is_alloc && event.kind != EventKind::kFree) {
      continue;
    }
    const size_t bytes = trace.bytes[event.index];
    if (is_small(bytes)) {
      now = is_alloc ? now + block_size(bytes) : now - block_size(bytes);
      peak = std::max(peak, now);
    }
  }
  return peak;
}

size_t pageable(const Trace& trace, size_t capacity) {
  const size_t aside = set_aside(trace);
  return capacity > aside ? capacity - aside : 0;
}

Paged& paged(Page* page) {
  return *static_cast<Paged*>(page);
}

} // namespace

Simulation::Simulation(
    const Trace& trace,
    const Machine& machine,
    at::cuda::lms::Policy& policy)
    : trace_(trace),
      machine_(machine),
      policy_(policy),
      memory_(pageable(trace, machine.capacity)),
      pages_(trace.bytes.size()),
      in_(machine.in_bandwidth),
      out_(machine.out_bandwidth) {
  for (size_t i = 0; i < pages_.size(); ++i) {
    pages_[i].id = i + 1;
    pages_[i].bytes = trace.bytes[i];
    pages_[i].is_small = is_small(trace.bytes[i]);
  }
  policy_.set_capacity(pageable(trace, machine.capacity));
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
  Time start = memory_ready_;
  Stall cause = Stall::kMemory;
  Time held_up = 0;
  for (const TraceUse& use : trace_.uses_of(next_operator_)) {
    const Paged& page = pages_[use.storage];
    if (page.arrival > start) {
      start = page.arrival;
      cause = page.is_prefetched ? Stall::kLate : Stall::kDemanded;
      held_up = page.held_up;
    }
  }
  stall_until(std::min(start, totals_.time + held_up), Stall::kMemory);
  stall_until(start, cause);
}

void Simulation::launch() {
  wait_for_memory_and_arguments();
  const TraceOperator& op = trace_.operators[next_operator_];
  computing_.push_back({totals_.time, totals_.time + op.duration});
  totals_.time += op.duration;
  totals_.compute += op.duration;

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
  policy_.on_operator(seen, actions);
  obey(actions);
}

void Simulation::obey(const at::cuda::lms::Actions& actions) {
  for (Page* page : actions.evict) {
    if (page->resident && page->evictable) {
      evict_early(paged(page));
    }
  }
  for (Page* page : actions.fetch) {
    // What is needed later must not take the room of what is needed first.
    if (!page->resident && !page_in(paged(page), /*ahead=*/true)) {
      break;
    }
  }
}

void Simulation::stall_until(Time time, Stall cause) {
  if (time > totals_.time) {
    totals_.stalls[static_cast<size_t>(cause)] += time - totals_.time;
    totals_.time = time;
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
  memory_ready_ = std::max(memory_ready_, place->available);
  settle(page, place->address);
}

void Simulation::allocate_small(Paged& page) {
  page.resident = true;
  small_taken_ += block_size(page.bytes);
  if (small_taken_ > machine_.capacity) {
    const size_t missing = small_taken_ - machine_.capacity;
    throw OutOfMemory(event_, block_size(page.bytes), missing);
  }
}

void Simulation::free(Paged& page) {
  page.is_alive = false;
  if (page.is_small) {
    small_taken_ -= block_size(page.bytes);
    return;
  }
  policy_.on_death(&page);
  page.evictable = false;
  if (page.resident) {
    page.resident = false;
    memory_.release(page.address, page.arrival, totals_.time);
  }
}

void Simulation::settle(Paged& page, uintptr_t address) {
  page.address = address;
  page.resident = true;
  page.evictable = !page.is_pinned;
  memory_.set_page(address, &page);
}

// --- paging ---

std::optional<Memory::Place> Simulation::obtain(const Paged& page, bool ahead) {
  reap();
  at::cuda::lms::Request request;
  request.bytes = block_size(page.bytes);
  request.ahead = ahead ? &page : nullptr;
  request.sent = sent_;
  request.left = leaving_.empty()
      ? sent_
      : leaving_.front().leaves_at - leaving_.front().bytes;
  while (true) {
    request.leaving = first_leaving(request.bytes);
    if (auto place = memory_.allocate(page.bytes, totals_.time)) {
      return place;
    }
    const auto victims = policy_.choose_window(memory_.layout(), request);
    if (victims.empty()) {
      return std::nullopt;
    }
    for (Page* victim : victims) {
      if (!victim->resident || !victim->evictable) {
        throw std::logic_error("the policy evicts what may not leave");
      }
      hand_over(paged(victim));
    }
  }
}

// Returns false if there is no room.
bool Simulation::page_in(Paged& page, bool ahead) {
  const auto place = obtain(page, ahead);
  if (!place) {
    return false;
  }
  const Time early = std::max({in_.free(), totals_.time, page.departure});
  const Interval done = in_.copy(page.bytes, std::max(early, place->available));
  totals_.in_bytes += page.bytes;
  page.arrival = done.end;
  page.held_up = done.begin - early;
  page.is_prefetched = ahead;
  page.clean = !machine_.blocks_host;
  settle(page, place->address);
  if (machine_.blocks_host) {
    stall_until(page.arrival, Stall::kDemanded);
  }
  return true;
}

// Ends the page's residence; its memory may have another owner from the time
// that is returned.
Time Simulation::page_out(Paged& page) {
  page.resident = false;
  page.evictable = false;
  if (page.clean) {
    return page.arrival;
  }
  const Time earliest = std::max(totals_.time, page.arrival);
  page.departure = out_.copy(page.bytes, earliest).end;
  totals_.out_bytes += page.bytes;
  sent_ += page.bytes;
  page.clean = true;
  if (machine_.blocks_host) {
    stall_until(page.departure, Stall::kMemory);
  }
  return page.departure;
}

// Keeps the page's memory until its copy has ended or somebody needs it.
void Simulation::evict_early(Paged& page) {
  if (page.clean || machine_.blocks_host) {
    hand_over(page);
    return;
  }
  Paged& rest = leaving_.emplace_back();
  rest.bytes = page.bytes;
  rest.clean = true;
  rest.arrival = page_out(page); // a clean page's memory is free from then
  rest.leaves_at = sent_;
  settle(rest, page.address);
}

// Makes the page's memory free now; a copy may still use it.
void Simulation::hand_over(Paged& page) {
  const Time until = page_out(page);
  memory_.release(page.address, until, totals_.time);
}

void Simulation::evict_all() {
  std::vector<Paged*> all;
  for (const auto& [address, segment] : memory_.layout().segments()) {
    for (const auto& [begin, block] : segment.blocks) {
      all.push_back(&paged(block.page));
    }
  }
  for (Paged* page : all) {
    hand_over(*page);
  }
}

// The page that has left before all other, if its memory has that size.
Page* Simulation::first_leaving(size_t bytes) {
  for (Paged& page : leaving_) {
    if (page.resident) {
      return memory_.size_at(page.address) == bytes ? &page : nullptr;
    }
  }
  return nullptr;
}

// Gives back the memory of pages whose copies have ended.
void Simulation::reap() {
  while (!leaving_.empty() && leaving_.front().arrival <= totals_.time) {
    if (leaving_.front().resident) {
      hand_over(leaving_.front());
    }
    leaving_.pop_front();
  }
}

// --- results ---

void Simulation::fail(const Paged& page) {
  const size_t wanted = block_size(page.bytes);
  const size_t window = std::min(memory_.largest_window(), wanted);
  throw OutOfMemory(event_, wanted, wanted - window);
}

Simulation::Mark Simulation::mark() const {
  return {totals_, in_.count(), out_.count()};
}

Totals Simulation::since(const Mark& mark) const {
  Totals totals = totals_;
  totals.time -= mark.totals.time;
  totals.compute -= mark.totals.compute;
  totals.in_bytes -= mark.totals.in_bytes;
  totals.out_bytes -= mark.totals.out_bytes;
  totals.copying =
      in_.duration(mark.in_copies) + out_.duration(mark.out_copies);
  totals.hidden = in_.hidden(mark.in_copies, computing_) +
      out_.hidden(mark.out_copies, computing_);
  for (size_t cause = 0; cause < kStallCauses; ++cause) {
    totals.stalls[cause] -= mark.totals.stalls[cause];
  }
  return totals;
}

} // namespace lms_replay
