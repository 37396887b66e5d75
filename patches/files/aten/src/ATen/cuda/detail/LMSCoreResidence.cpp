#include <ATen/cuda/detail/LMSCoreResidence.h>

#include <exception>
#include <utility>

namespace at::cuda::lms {
// --- its beginning and its end ---

void Residence::begin(PageEntry* page, Block* block) {
  page->block = block;
  books_.map.occupy(block, page);
  books_.pages.add(page);
  page->update();
}

void Residence::begin_on_host(PageEntry* page, HostPieces host) {
  page->host = std::move(host);
  page->state = PageEntry::State::kPagedOut;
  page->clear_users();
  books_.pages.add(page);
  books_.stats.paged_out_bytes.add(static_cast<int64_t>(page->bytes));
  page->update();
}

HostPieces Residence::take_copy(PageEntry* page, Event& ready) {
  if (!page->is_on_host() || page->pins > 0 || page->transfer) {
    return {};
  }
  ready = std::exchange(page->write_back, nullptr);
  return std::exchange(page->host, {});
}

void Residence::end(PageEntry* page, Freed& freed) {
  page->dead = true;
  page->evictable = false;
  // If it is arriving, the thread that copies it in sees to the rest.
  if (page->state == PageEntry::State::kPagedOut) {
    books_.stats.paged_out_bytes.remove(static_cast<int64_t>(page->bytes));
  }
  if (page->state != PageEntry::State::kArriving) {
    free_copies(page);
  }
  books_.pages.remove(page);
  if (page->pins == 0) {
    freed.add(std::unique_ptr<PageEntry>(page));
  }
}

// What the host and the disk have of a page that dies.
void Residence::free_copies(PageEntry* page) {
  books_.disk.drop(page);
  if (!page->host.empty()) {
    books_.host.free(page);
  }
}

void* Residence::free_while_used(PageEntry* page, Freed& freed) {
  note_end_of_stay(*page);
  const auto address = reinterpret_cast<uintptr_t>(page->memory.get());
  const size_t bytes = page->block ? page->block->size : page->bytes;
  const Events uses = uses_of(*page);
  if (page->arrival && !page->is_used_at_home) {
    books_.draining.free_after({page->arrival}, detach(page), freed);
  } else {
    freed.add(detach(page));
  }
  books_.draining.handover().put(
      address, bytes, books_.draining.not_happened(uses));
  return reinterpret_cast<void*>(address);
}

DeviceMemory Residence::detach(PageEntry* page) {
  books_.map.occupy(std::exchange(page->block, nullptr), nullptr);
  return std::move(page->memory);
}

// The page is evicted, or dies on the device.
void Residence::note_end_of_stay(const PageEntry& page) {
  if (page.waits_for == Activity::kWaitForAhead && !page.is_used()) {
    ++books_.stats.fetched_in_vain;
  }
}

// --- pins ---

void Residence::add_pin(PageEntry* page) {
  take_pin(page);
  if (page->pins - page->own_pins == 1 && page->is_shown()) {
    page->show_address();
  }
}

void Residence::drop_pin(PageEntry* page, Freed& freed) noexcept {
  if (page->pins - page->own_pins == 1 && !page->dead) {
    page->hide_address();
  }
  give_pin(page, freed);
}

void Residence::add_own_pin(PageEntry* page) {
  ++page->own_pins;
  take_pin(page);
  books_.contention.note_pins(1);
}

void Residence::drop_own_pin(PageEntry* page, Freed& freed) noexcept {
  --page->own_pins;
  give_pin(page, freed);
  books_.contention.note_unpins(1);
}

void Residence::take_pin(PageEntry* page) {
  if (page->pins++ > 0) {
    return;
  }
  for (const Pool pool : {kAll, page->pool()}) {
    books_.stats.pinned[pool].add(1);
    books_.stats.pinned_bytes[pool].add(static_cast<int64_t>(page->bytes));
  }
  page->update();
}

void Residence::give_pin(PageEntry* page, Freed& freed) noexcept {
  if (--page->pins > 0) {
    return;
  }
  for (const Pool pool : {kAll, page->pool()}) {
    books_.stats.pinned[pool].remove(1);
    books_.stats.pinned_bytes[pool].remove(static_cast<int64_t>(page->bytes));
  }
  if (page->dead) {
    page->end();
    freed.add(std::unique_ptr<PageEntry>(page));
  } else {
    page->update();
  }
}

// --- uses ---

void Residence::note_access(PageEntry* page, bool writes, Stream stream) {
  note_use(page, stream);
  page->is_newly_made = false;
  page->gain = 0;
  if (writes) {
    if (page->write_back && !world_.has_happened(page->write_back)) {
      world_.wait(stream, {page->write_back}, Activity::kWaitForMemory);
    }
    books_.drop_copies(page);
  }
}

void Residence::note_use(PageEntry* page, Stream stream) {
  const bool is_user = page->is_used_on(stream);
  if (is_user && !world_.may_be_another(stream)) {
    return;
  }
  // Another stream that had the handle may have waited for it.
  if (page->arrival && !(is_user && world_.has_happened(page->arrival))) {
    world_.wait(stream, {page->arrival}, page->waits_for);
  }
  if (!is_user) {
    page->add_user(stream);
  }
}

Events Residence::uses_of(const PageEntry& page) {
  Events events;
  for (Stream user : page.other_users) {
    append(events, world_.queued(user));
  }
  if (page.arrival && !page.is_used_at_home) {
    events.push_back(page.arrival);
  }
  if (page.write_back) {
    events.push_back(page.write_back);
  }
  return events;
}

// --- to the host ---

Event Residence::copy_out(PageEntry* page, const HostPieces* host) {
  Copy copy{Copy::Kind::kOut, *page, nullptr, host, {}};
  // Users have waited for the arrival; if the home stream has not, uses_of has
  // it.
  copy.after = world_.queued(page->home);
  append(copy.after, uses_of(*page));
  Event end = world_.copy(copy);
  if (world_.traits().blocks_host) {
    world_.wait_on_host(end); // because the original engine did
  }
  return end;
}

bool Residence::save(PageEntry* page) {
  // What has to be waited for now is there later.
  HostMemory::Wait none(/*is_allowed=*/false);
  HostPieces host =
      world_.allocate_on_host(page->bytes, HostMemory::Claim::kShare, none);
  if (host.empty()) {
    return false;
  }
  try {
    Event end = copy_out(page, &host);
    write_back(page, std::move(host), std::move(end));
  } catch (const std::exception& error) {
    world_.free_on_host(std::move(host), nullptr);
    last_failure_ = world_.reason_of(error);
    return false;
  }
  page->update();
  return true;
}

Draining* Residence::page_out(
    PageEntry* page,
    HostMemory::Wait& wait,
    std::optional<size_t> room) {
  bool is_clean = !page->host.empty() || page->disk;
  HostPieces host;
  if (page->host.empty() && page->disk) {
    host = books_.disk.allocate_if_sooner(*page);
    is_clean = host.empty();
  }
  const bool is_dropped =
      !is_clean && host.empty() && is_given_up(page, room.has_value());
  const bool needs_copy = !is_clean && !is_dropped;
  if (needs_copy && host.empty()) {
    host = books_.disk.allocate(page->bytes, wait);
    if (host.empty()) {
      if (!wait.is_needed()) {
        last_failure_ = "host memory for paged-out storages is spent";
      }
      return nullptr;
    }
  }
  Events events;
  try {
    if (!needs_copy && !world_.traits().evicts_all) {
      events = uses_of(*page);
    } else {
      events = {copy_out(page, needs_copy ? &host : nullptr)};
    }
  } catch (const std::exception& error) {
    if (needs_copy) {
      world_.free_on_host(std::move(host), nullptr);
    }
    last_failure_ = world_.reason_of(error);
    return nullptr;
  }
  world_.note_departure(
      *page,
      is_dropped     ? Departure::kDropped
          : is_clean ? Departure::kClean
                     : Departure::kCopied,
      room.value_or(0));
  if (is_dropped) {
    return &leave(page, std::move(events), PageEntry::State::kDropped);
  }
  if (is_clean) {
    drop_clean(page);
  } else {
    write_back(page, std::move(host), events.front());
  }
  return &leave(page, std::move(events), PageEntry::State::kPagedOut);
}

// The bytes go without a copy, see Note [Copy or make again]: by the plan, or
// because the memory is needed now and the link has enough to do. Under chaos
// in turn with copies.
bool Residence::is_given_up(PageEntry* page, bool is_needed) {
  if (world_.traits().evicts_all) {
    page->was_given_up =
        !page->was_given_up && world_.give_up(*page, /*at_any_cost=*/true);
    return page->was_given_up;
  }
  constexpr uint64_t kMostLeaving = uint64_t{128} << 20; // bytes
  return is_needed && books_.policy->makes_again() &&
      (page->gain > 0 || books_.progress.leaving() >= kMostLeaving) &&
      world_.give_up(*page, /*at_any_cost=*/false);
}

// The bytes are on their way to the host.
void Residence::write_back(PageEntry* page, HostPieces host, Event end) {
  page->host = std::move(host);
  page->write_back = std::move(end);
  page->written_back_at =
      books_.progress.add_write_back(page->write_back, page->bytes);
  books_.stats.paged_out.add(page->bytes);
}

// The host has the bytes already, or the disk.
void Residence::drop_clean(PageEntry* page) {
  // What reads the host copy must have read it before the copy's memory is
  // used again, also if the storage dies now.
  if (!page->write_back) {
    page->write_back = page->arrival;
  }
  books_.stats.dropped += 1;
  books_.stats.dropped_bytes += static_cast<int64_t>(page->bytes);
}

// The page's memory is not its own any more: it drains.
Draining& Residence::leave(
    PageEntry* page,
    Events events,
    PageEntry::State state) {
  const auto bytes = static_cast<int64_t>(page->bytes);
  if (state == PageEntry::State::kPagedOut) {
    books_.stats.paged_out_bytes.add(bytes);
  }
  books_.stats.reclaimed += 1;
  books_.stats.reclaimed_bytes += bytes;
  // What is dropped waits for no write-back.
  const uint64_t drained_at =
      state == PageEntry::State::kDropped ? 0 : books_.progress.sent();
  Draining& draining =
      books_.draining.keep(*page, std::move(events), drained_at);
  note_end_of_stay(*page);
  page->gain = 0;
  page->clear_users();
  page->arrival = nullptr;
  page->state = state;
  page->update();
  return draining;
}

bool Residence::evict(
    Page* page,
    HostMemory::Wait& wait,
    size_t room,
    Freed& freed) {
  auto* draining = page->draining ? static_cast<Draining*>(page)
                                  : page_out(entry(page), wait, room);
  if (draining) {
    books_.draining.hand_over(*draining, freed);
  }
  return draining != nullptr;
}

// --- to the device, and within it ---

void Residence::attach(PageEntry* page, DeviceMemory memory) {
  page->block = books_.map.block_of(memory.get());
  books_.map.occupy(page->block, page);
  page->memory = std::move(memory);
  page->state = PageEntry::State::kResident;
  page->update();
  if (page->is_shown()) {
    page->show_address();
  }
}

void Residence::arrive(
    PageEntry* page,
    DeviceMemory& memory,
    bool is_ahead,
    const Events& pending,
    Freed& freed) {
  const Segment* segment = books_.map.segment_of(memory.get());
  if (segment && page->home != reinterpret_cast<Stream>(segment->stream)) {
    page->set_home(reinterpret_cast<Stream>(segment->stream));
  }
  Copy copy{Copy::Kind::kIn, *page, memory.get(), nullptr, {}, is_ahead};
  copy.is_urgent = !is_ahead || page->was_stray;
  copy.after = world_.queued(page->home);
  append(copy.after, pending);
  // After a page-out that copied nothing there is none to wait for.
  if (books_.progress.must_await(page->written_back_at, copy.is_urgent)) {
    copy.after.push_back(page->write_back);
  }
  page->arrival = world_.copy(copy);
  books_.progress.note_awaited(page->written_back_at, copy.is_urgent);
  page->write_back = nullptr;
  page->arrives_at = books_.progress.add_arrival(page->arrival);
  books_.stats.paged_out_bytes.remove(static_cast<int64_t>(page->bytes));
  books_.stats.paged_in.add(page->bytes);
  page->waits_for =
      is_ahead ? Activity::kWaitForAhead : Activity::kWaitForDemand;
  if (is_ahead) {
    books_.stats.fetched_ahead.add(page->bytes);
  }
  if (page->dead) { // since it began to arrive
    end_dead_arrival(page, std::move(memory), freed);
  } else {
    attach(page, std::move(memory));
  }
}

// The storage has died since the copy into `memory` was begun.
void Residence::end_dead_arrival(
    PageEntry* page,
    DeviceMemory memory,
    Freed& freed) {
  note_end_of_stay(*page);
  free_copies(page);
  books_.draining.free_after({page->arrival}, std::move(memory), freed);
  page->state = PageEntry::State::kPagedOut;
}

void Residence::stay_away(PageEntry* page) {
  page->state = PageEntry::State::kPagedOut;
  if (page->dead) {
    books_.stats.paged_out_bytes.remove(static_cast<int64_t>(page->bytes));
    free_copies(page);
  }
}

void Residence::put_back(
    PageEntry* page,
    DeviceMemory memory,
    Stream stream,
    Event end,
    Freed& freed) {
  page->arrival = std::move(end);
  page->write_back = nullptr;
  page->waits_for = Activity::kWaitForMemory;
  page->is_newly_made = true;
  if (page->dead) { // since it began to be made
    end_dead_arrival(page, std::move(memory), freed);
    return;
  }
  if (const Segment* segment = books_.map.segment_of(memory.get())) {
    // Nobody has used this memory for the page: the stream that it had before
    // need not be told, and may be gone.
    page->home = reinterpret_cast<Stream>(segment->stream);
  }
  page->add_user(stream);
  attach(page, std::move(memory));
}

void Residence::stay_dropped(PageEntry* page) {
  page->state = PageEntry::State::kDropped;
}

void Residence::move(
    PageEntry* page,
    DeviceMemory& memory,
    const Events& pending,
    Freed& freed) {
  Copy copy{Copy::Kind::kMove, *page, memory.get(), nullptr, {}};
  copy.after = world_.queued(page->home);
  append(copy.after, uses_of(*page));
  append(copy.after, pending);
  page->arrival = world_.copy(copy);
  books_.stats.moved.add(page->bytes);
  books_.draining.free_after({page->arrival}, detach(page), freed);
  if (page->dead) { // since the move began
    end_dead_arrival(page, std::move(memory), freed);
    return;
  }
  if (page->is_used()) {
    page->clear_users(); // each waits for the bytes again
    page->waits_for = Activity::kWaitForMemory;
  }
  attach(page, std::move(memory));
}

void Residence::stay(PageEntry* page, Freed& freed) {
  page->state = PageEntry::State::kResident;
  if (page->dead) {
    free_copies(page);
    free_while_used(page, freed);
  } else {
    page->update();
    if (page->is_shown()) {
      page->show_address();
    }
  }
}

} // namespace at::cuda::lms
