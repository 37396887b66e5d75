#include "simulation.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

// What moves between the device and the host, and within the device.

namespace lms_replay {
namespace {

using at::cuda::lms::Clearing;
using at::cuda::lms::Page;
using at::cuda::lms::Request;

} // namespace

std::optional<Memory::Place> Simulation::obtain(const Paged& page, bool ahead) {
  reap();
  Request request;
  request.bytes = block_size(page.bytes);
  note_arrivals();
  request.arrived = arrived_;
  request.ahead = ahead ? &page : nullptr;
  request.sent = sent_;
  // Who has got memory already waits for it, and for what drained before it.
  const Paged* first = first_draining();
  request.drained = first ? first->drained_at - first->bytes : sent_;
  make_gap(request);
  while (true) {
    Paged* next = first_draining();
    request.draining = next && memory_.size_at(next->address) == request.bytes
        ? next
        : nullptr;
    if (auto place = memory_.allocate(page.bytes, link_, host_)) {
      return place;
    }
    const auto victims = policy_->choose_window(memory_.layout(), request);
    if (victims.empty()) {
      return std::nullopt;
    }
    for (Page* victim : victims) {
      if (!victim->resident || !victim->evictable) {
        throw std::logic_error("the policy evicts what may not be evicted");
      }
      hand_over(paged(victim));
    }
  }
}

// Makes one gap out of several, if that needs no page-out.
void Simulation::make_gap(const Request& request) {
  if (!traits_.joins_memory ||
      memory_.layout().has_gap(request.bytes, request.stream)) {
    return;
  }
  const Clearing clearing =
      at::cuda::lms::cheapest_clearing(memory_.layout(), request, &hand_);
  std::vector<Page*> moving;
  for (Page* page : clearing.pages) {
    if (page->draining) {
      hand_over(paged(page));
    } else {
      page->evictable = false;
      moving.push_back(page);
    }
  }
  bool goes_on = true;
  for (Page* page : moving) {
    goes_on = goes_on && move_out_of(clearing, paged(page), request);
    page->evictable = !paged(page).is_pinned;
  }
}

// False if there is no other place for the page.
bool Simulation::move_out_of(
    const Clearing& clearing,
    Paged& page,
    const Request& request) {
  std::vector<Memory::Place> inside; // no better than where it is
  const auto allocate = [&] {
    auto place = memory_.allocate(page.bytes, link_, host_);
    while (place &&
           (clearing.extent.has(place->address) ||
            request.kept.has(place->address))) {
      inside.push_back(std::move(*place));
      place = memory_.allocate(page.bytes, link_, host_);
    }
    return place;
  };
  auto place = allocate();
  if (!place && clearing.is_tight) {
    Request inner = request;
    inner.bytes = block_size(page.bytes);
    inner.kept = clearing.extent;
    make_gap(inner);
    place = allocate();
  }
  for (const Memory::Place& place : inside) {
    memory_.release(place.address, {}); // its copies are known
  }
  if (!place) {
    return false;
  }
  const size_t waits = place->pending.size();
  page.arrival = link_.queue(
      Direction::kAside,
      page.bytes,
      totals_.time,
      {page.arrival},
      std::move(place->pending));
  totals_.moved_bytes += page.bytes;
  enqueue(2); // an event now, and a wait before the next use
  enqueue_copy(Direction::kAside, page.arrival, waits);
  memory_.release(page.address, {page.arrival});
  settle(page, place->address);
  return true;
}

// Returns false if there is no room.
bool Simulation::page_in(Paged& page, bool ahead) {
  auto place = obtain(page, ahead);
  if (!place) {
    return false;
  }
  const size_t waits = place->pending.size();
  page.arrival = link_.queue(
      Direction::kIn,
      page.bytes,
      totals_.time,
      {page.write_back},
      std::move(place->pending));
  arriving_.push_back(page.arrival);
  page.arrives_at = arrived_ + arriving_.size();
  totals_.in_bytes += page.bytes;
  enqueue(2); // an event now, and a wait before the first use
  enqueue_copy(Direction::kIn, page.arrival, waits);
  page.is_prefetched = ahead;
  page.clean = traits_.keeps_copies;
  settle(page, place->address);
  if (traits_.blocks_host) {
    stall_until(link_.end_of(page.arrival), Stall::kDemanded);
  }
  return true;
}

// Ends the page's residence; returns the copies that still use its memory.
CopyIds Simulation::page_out(Paged& page) {
  page.resident = false;
  page.evictable = false;
  if (page.clean) {
    return {page.arrival};
  }
  page.write_back = link_.queue(
      Direction::kOut, page.bytes, totals_.time, {page.arrival}, {});
  totals_.out_bytes += page.bytes;
  sent_ += page.bytes;
  enqueue(1); // an event
  enqueue_copy(Direction::kOut, page.write_back, 0);
  page.clean = true;
  if (traits_.blocks_host) {
    stall_until(link_.end_of(page.write_back), Stall::kMemory);
  }
  return {page.write_back};
}

// Keeps the page's memory until its copy has ended or somebody needs it.
void Simulation::evict_early(Paged& page) {
  if (page.clean || traits_.blocks_host) {
    hand_over(page);
    return;
  }
  Paged& rest = draining_.emplace_back();
  rest.bytes = page.bytes;
  rest.draining = rest.clean = true;
  rest.arrival = page_out(page).front(); // its memory is free then
  rest.drained_at = sent_;
  settle(rest, page.address);
}

// Makes the page's memory free now; a copy may still use it.
void Simulation::hand_over(Paged& page) {
  const CopyIds pending = page_out(page);
  memory_.release(page.address, pending);
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

// The memory that is free before all other and that nobody has got yet.
Paged* Simulation::first_draining() {
  for (Paged& page : draining_) {
    if (page.resident) {
      return &page;
    }
  }
  return nullptr;
}

// What the program can know to have arrived.
void Simulation::note_arrivals() {
  link_.run_to(host_);
  while (!arriving_.empty() && link_.has_ended(arriving_.front(), host_)) {
    ++arrived_;
    arriving_.pop_front();
  }
}

// Gives back the memory of pages whose copies have ended.
void Simulation::reap() {
  link_.run_to(host_);
  while (!draining_.empty() &&
         link_.has_ended(draining_.front().arrival, host_)) {
    if (draining_.front().resident) {
      hand_over(draining_.front());
    }
    draining_.pop_front();
  }
}

} // namespace lms_replay
