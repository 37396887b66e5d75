#include <ATen/cuda/detail/LMSDevice.h>

#include <ATen/cuda/detail/LMSAllocator.h>
#include <ATen/cuda/detail/LMSCaptures.h>
#include <ATen/cuda/detail/LMSDeviceLock.h>
#include <ATen/cuda/detail/LMSHostMemory.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <unordered_set>
#include <utility>

// How device memory gets free: what leaves it, and how the memory goes back to
// the allocator while copies still read from it.

namespace at::cuda::lms {
namespace {

Handover::Events not_happened(const Handover::Events& events) {
  Handover::Events rest;
  for (const Event& event : events) {
    if (!has_happened(event)) {
      rest.push_back(event);
    }
  }
  return rest;
}

} // namespace

// Gives the memory to the allocator; the entry in draining_ is void then.
void Device::hand_over(Draining& draining, Freed& freed) {
  const auto address = reinterpret_cast<uintptr_t>(draining.memory.get());
  const Handover::Events pending = not_happened(draining.events);
  auto [segment, block] = layout_.find(address);
  if (segment && !pending.empty()) {
    if (segment->is_expandable) {
      const auto home = reinterpret_cast<cudaStream_t>(segment->stream);
      c10::cuda::CUDAGuard guard(index_);
      for (const Event& event : pending) {
        wait_event(home, event);
      }
    } else {
      handover_.put(address, block->size, pending);
    }
  }
  occupy(draining.block, nullptr);
  freed.add(std::move(draining.memory));
}

// Frees memory that nobody uses but the copy that ends with the event.
void Device::free_after(Event copied, c10::DataPtr memory, Freed& freed) {
  Draining draining;
  draining.memory = std::move(memory);
  draining.events.push_back(std::move(copied));
  hand_over(draining, freed);
}

// Whether work that LMS has not seen may use a storage that dies, on a stream
// that cannot be asked. See Note [External streams] and Note [CUDA graphs].
bool Device::may_have_unseen_users(const ManagedStorage& record) const {
  return record.held &&
      (record.is_in_graph || streams_.is_out_of_reach(record.home) ||
       std::any_of(
           record.users.begin(), record.users.end(), [this](cudaStream_t user) {
             return streams_.is_out_of_reach(user);
           }));
}

void Device::free_memory_in_doubt() {
  if (!is_any_in_doubt_.load(std::memory_order_relaxed) || may_be_captures()) {
    return;
  }
  std::vector<c10::DataPtr> memory;
  {
    Lock lock(*this);
    memory.swap(in_doubt_);
    is_any_in_doubt_.store(false);
  }
  // The host waits because the streams that may use the memory may be gone.
  c10::cuda::CUDAGuard guard(index_);
  C10_CUDA_CHECK(cudaDeviceSynchronize());
}

// Frees the memory of a storage that dies on the device, see Note [Handing
// memory over].
void Device::free_while_used(ManagedStorage* record, Freed& freed) {
  const auto address = reinterpret_cast<uintptr_t>(record->memory.get());
  const size_t bytes = record->block ? record->block->size : record->bytes;
  const Handover::Events uses = uses_of(record);
  if (record->arrival && !record->is_used_on(record->home)) {
    free_after(record->arrival, detach_memory(record), freed);
  } else {
    freed.add(detach_memory(record));
  }
  handover_.put(address, bytes, not_happened(uses));
}

// Gives up the page's memory, at once. False if a wait is needed or its bytes
// cannot be evicted.
bool Device::evict(Page* page, HostMemory::Wait& wait, Freed& freed) {
  auto draining = draining_.end();
  if (page->draining) {
    draining = static_cast<Draining*>(page)->self;
  } else if (page_out(static_cast<ManagedStorage*>(page), wait)) {
    --draining;
  } else {
    return false;
  }
  hand_over(*draining, freed);
  draining_.erase(draining);
  return true;
}

void Device::Eviction::add(const std::vector<Page*>& victims) {
  // What is draining first: nothing keeps it alive through a wait.
  for (const bool is_draining : {true, false}) {
    for (Page* page : victims) {
      if (page->draining == is_draining) {
        pages.emplace_back(page, page->id);
      }
    }
  }
}

// Evicts the pages, in order, until a wait is needed.
void Device::evict(Eviction& eviction, Freed& freed) {
  auto& pages = eviction.pages;
  size_t done = 0;
  for (; done < pages.size(); ++done) {
    Page* page = pages[done].first;
    const size_t bytes = page->bytes;
    if (!page->evictable) {
      continue; // it was, before the wait
    }
    const bool is_evicted = eviction.keeps_memory
        ? page_out(static_cast<ManagedStorage*>(page), eviction.wait)
        : evict(page, eviction.wait, freed);
    if (eviction.wait.is_needed()) {
      break;
    }
    eviction.gone.count += is_evicted ? 1 : 0;
    eviction.gone.bytes += is_evicted ? bytes : 0;
    eviction.has_failed = eviction.has_failed || !is_evicted;
  }
  pages.erase(pages.begin(), pages.begin() + static_cast<std::ptrdiff_t>(done));
}

// Waits and goes on until all are evicted that can be. The same ones are as
// without a wait, so that it does not matter how long page-locking takes.
void Device::finish(Eviction& eviction) {
  while (HostMemory::get().finish(eviction.wait)) {
    Freed freed(*this);
    Lock lock(*this);
    std::unordered_set<uint64_t> alive;
    for (const ManagedStorage* record : records_) {
      alive.insert(record->id);
    }
    const auto is_gone = [&alive](const std::pair<Page*, uint64_t>& entry) {
      return alive.count(entry.second) == 0;
    };
    auto& pages = eviction.pages;
    pages.erase(
        std::remove_if(pages.begin(), pages.end(), is_gone), pages.end());
    evict(eviction, freed);
  }
  eviction.has_failed = eviction.has_failed || !eviction.pages.empty();
}

void Device::note_arrivals() {
  while (!copies_in_.empty() && has_happened(copies_in_.front())) {
    ++arrived_pages_;
    copies_in_.pop_front();
  }
}

void Device::note_write_backs() {
  // They end in order: the first that has not ended is the last to ask.
  while (!write_backs_.empty() && has_happened(write_backs_.front().event)) {
    drained_bytes_ = write_backs_.front().drained_at;
    write_backs_.pop_front();
  }
}

// Finds out what has drained and arrived by now, and tells the request.
void Device::note_progress(Request& request) {
  note_arrivals();
  note_write_backs();
  request.arrived = arrived_pages_;
  request.sent = sent_bytes_;
  request.drained = sent_bytes_;
  if (!draining_.empty()) {
    Draining& first = draining_.front();
    // Who has got memory already waits for it, and for what drained before it.
    request.drained = std::max(drained_bytes_, first.drained_at - first.bytes);
    const Segment* segment =
        layout_.find(reinterpret_cast<uintptr_t>(first.memory.get())).first;
    if (first.bytes == request.bytes && segment && !segment->is_private &&
        segment->stream == request.stream) {
      request.draining = &first;
    }
  }
}

std::vector<Page*> Device::all_evictable() {
  std::vector<Page*> pages;
  for (ManagedStorage* record : records_) {
    if (record->evictable) {
      pages.push_back(record);
    }
  }
  // In the order of adoption: that of the records depends on which died when.
  std::sort(pages.begin(), pages.end(), [](const Page* a, const Page* b) {
    return a->id < b->id;
  });
  for (Draining& draining : draining_) {
    pages.push_back(&draining);
  }
  return pages;
}

Device::Reclaimed Device::reclaim(
    const Request& wanted,
    Scope scope,
    bool may_wait) noexcept {
  if (is_capturing()) {
    return {};
  }
  Eviction eviction(may_wait);
  try {
    {
      Freed freed(*this);
      Lock lock(*this);
      Request request = wanted;
      note_progress(request);
      const auto victims = scope == Scope::kWindow
          ? policy_->choose_window(layout_, request)
          : scope == Scope::kSegments
          ? policy_->choose_segments(layout_, request.bytes)
          : all_evictable();
      if (scope == Scope::kWindow && !victims.empty()) {
        has_evicted_ = is_consolidation_due_ = true;
      }
      eviction.add(victims);
      evict(eviction, freed);
    }
    finish(eviction);
  } catch (const std::exception& error) {
    // No memory even for the lists of victims: what is evicted is evicted.
    TORCH_WARN_ONCE("LMS could not reclaim memory: ", error.what());
  }
  return eviction.gone;
}

bool Device::is_room_needed(const Request& request) {
  {
    Lock lock(*this);
    if (layout_.has_gap(request.bytes, request.stream)) {
      return false;
    }
  }
  return must_reclaim(request.bytes);
}

bool Device::must_reclaim(size_t bytes) {
  if (is_capturing()) {
    Lock lock(*this);
    return !may_grow(bytes);
  }
  {
    Lock lock(*this);
    if (!may_grow(bytes)) {
      return true;
    }
  }
  look_at_card_before_growth(growth_for(bytes));
  Lock lock(*this);
  return !may_grow(bytes);
}

// True if the limit has room for a new segment that serves the request. In one
// segment, see Note [One segment], the rest is for small storages.
bool Device::may_grow(size_t bytes) const {
  const size_t kept =
      is_consolidated_ && bytes > kSmallSize ? room_for_small_ : 0;
  // What is cached and empty the allocator gives back by itself.
  return may_reserve(
      layout_.reserved() - layout_.empty() + growth_for(bytes) + kept);
}

bool Device::may_reserve(size_t bytes) const {
  return !is_limited_ || bytes <= limit_;
}

void Device::make_room_for_pool() {
  {
    Lock lock(*this);
    if (may_reserve(layout_.reserved() + growth_for(1 + kSmallSize))) {
      return;
    }
  }
  shrink({}, Scope::kAll);
}

// Pages out and gives the memory back to the driver.
void Device::shrink(const Request& wanted, Scope scope) {
  reclaim(wanted, scope, /*may_wait=*/true);
  settle();
  empty_cache(Allocator::get().native());
}

void Device::return_pending(
    const void* memory,
    const Handover::Events& pending) noexcept {
  if (memory) {
    Lock lock(*this);
    const auto address = reinterpret_cast<uintptr_t>(memory);
    if (const Block* block = layout_.find(address).second) {
      handover_.put(address, block->size, pending);
    }
  }
}

void Device::settle() {
  free_memory_in_doubt();
  Freed freed(*this);
  Handover::Events pending;
  std::set<uintptr_t> homes; // of expandable segments, see hand_over
  {
    Lock lock(*this);
    for (const auto& [address, segment] : layout_.segments()) {
      if (segment.is_expandable) {
        homes.insert(segment.stream);
      }
    }
    while (!draining_.empty()) {
      hand_over(draining_.front(), freed);
      draining_.pop_front();
    }
    // They stay noted: the memory may get another owner meanwhile.
    pending = handover_.pending();
  }
  // The host waits because the driver does not know of these copies. Before it
  // unmaps memory the allocator waits for a segment's stream, but for the
  // current device's where that is the default stream.
  c10::cuda::CUDAGuard guard(index_);
  for (const uintptr_t home : homes) {
    synchronize(reinterpret_cast<cudaStream_t>(home));
  }
  bool have_ended = true;
  for (const Event& event : pending) {
    have_ended = wait_on_host(event) && have_ended;
  }
  if (!have_ended) { // the whole device is waited for instead
    C10_CUDA_CHECK(cudaDeviceSynchronize());
  }
  Lock lock(*this);
  handover_.forget(pending);
}

} // namespace at::cuda::lms
