#include <ATen/cuda/detail/LMSCoreDraining.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

namespace at::cuda::lms {

Draining& DrainingMemory::keep(PageEntry& page, Events events, uint64_t sent) {
  Draining& draining = all_.emplace_back();
  draining.self = std::prev(all_.end());
  draining.block = std::exchange(page.block, nullptr);
  draining.memory = std::move(page.memory);
  draining.events = std::move(events);
  draining.draining = draining.evictable = true;
  draining.clean = true;
  draining.bytes = draining.block ? draining.block->size : 0;
  draining.drained_at = sent;
  map_.occupy(draining.block, &draining);
  return draining;
}

void DrainingMemory::hand_over(Draining& draining, Freed& freed) {
  map_.occupy(draining.block, nullptr);
  free_after(draining.events, std::move(draining.memory), freed);
  all_.erase(draining.self);
}

void DrainingMemory::free_after(
    const Events& events,
    DeviceMemory memory,
    Freed& freed) {
  const Events pending = not_happened(events);
  const auto address = reinterpret_cast<uintptr_t>(memory.get());
  const auto [segment, block] = map_.layout().find(address);
  if (segment && !pending.empty()) {
    if (segment->is_expandable) {
      make_wait(reinterpret_cast<Stream>(segment->stream), pending);
    } else {
      handover_.put(address, block->size, pending);
    }
  }
  freed.add(std::move(memory));
}

// Does not fail: the memory is about to be free.
void DrainingMemory::make_wait(Stream stream, const Events& events) noexcept {
  try {
    world_.wait(stream, events, std::nullopt);
  } catch (const std::exception&) {
    for (const Event& event : events) {
      world_.wait_on_host(event); // the first error is the one to report
    }
  }
}

void DrainingMemory::hand_all_over(Freed& freed) {
  while (!all_.empty()) {
    hand_over(all_.front(), freed);
  }
}

void DrainingMemory::release_drained(const Progress& progress, Freed& freed) {
  const auto is_drained = [&](const Draining& draining) {
    return draining.drained_at <= progress.drained() &&
        not_happened(draining.events).empty();
  };
  while (!all_.empty() && is_drained(all_.front())) {
    hand_over(all_.front(), freed);
  }
}

void DrainingMemory::tell(Progress& progress, Request& request) {
  progress.tell(request);
  if (all_.empty()) {
    return;
  }
  Draining& first = all_.front();
  // Who has got memory already waits for it, and for what drained before it.
  request.drained = std::max(
      progress.drained(),
      first.drained_at - std::min<uint64_t>(first.drained_at, first.bytes));
  const Segment* segment = map_.segment_of(first.memory.get());
  if (first.bytes == request.bytes && segment && !segment->is_private &&
      segment->stream == request.stream) {
    request.draining = &first;
  }
}

Events DrainingMemory::not_happened(const Events& events) const {
  Events rest;
  for (const Event& event : events) {
    if (!world_.has_happened(event)) {
      rest.push_back(event);
    }
  }
  return rest;
}

} // namespace at::cuda::lms
