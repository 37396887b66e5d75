#include <ATen/cuda/detail/LMSCoreRelocation.h>

#include <utility>

namespace at::cuda::lms {

void Relocator::make_gap(const Request& wanted) noexcept {
  // While nothing has had to be evicted, there is nothing to be gained.
  if (!books_.has_evicted.load(std::memory_order_relaxed) ||
      !books_.world.traits().joins_memory) {
    return;
  }
  Request request = wanted;
  Pages moving;
  try {
    if (!release_drained(request)) {
      return;
    }
    const Clearing clearing = begin(request, moving);
    move_out_of(clearing, moving, request.kept);
  } catch (const std::exception& error) {
    // What is where it was can be paged out instead.
    books_.world.warn("LMS could not move storages aside: ", error);
  }
  end(moving);
}

bool Relocator::release_drained(Request& request) {
  Freed freed(books_.contention);
  const Lock lock(books_.mutex);
  if (!books_.map.is_crowded(request)) {
    return false;
  }
  books_.tell(request);
  books_.draining.release_drained(books_.progress, freed);
  return true;
}

// Chooses what is to move, and pins it.
Clearing Relocator::begin(const Request& request, Pages& moving) {
  Freed freed(books_.contention);
  const Lock lock(books_.mutex);
  if (!books_.map.is_crowded(request)) {
    return {};
  }
  Clearing clearing = cheapest_clearing(books_.map.layout(), request, &hand_);
  HostMemory::Wait unneeded(/*is_allowed=*/false);
  moving.reserve(clearing.pages.size());
  for (Page* page : clearing.pages) {
    if (page->draining) {
      residence_.evict(page, unneeded, 0, freed); // that copies nothing
      continue;
    }
    moving.push_back(entry(page));
    entry(page)->state = PageEntry::State::kArriving;
    residence_.add_own_pin(entry(page));
  }
  return clearing;
}

// To be asked first: an allocator that looks in vain gives all that it has
// cached back to the driver, and tells who watches for errors.
bool Relocator::has_room_for(const PageEntry& page) {
  const Lock lock(books_.mutex);
  return !books_.map.is_crowded(request_for(page, books_.world));
}

// Memory outside of what is cleared and of what is kept; null if there is none.
// `inside`: what was found there, no better than before.
DeviceMemory Relocator::allocate(
    const PageEntry& page,
    const Extent& cleared,
    const Extent& kept,
    std::vector<DeviceMemory>& inside,
    Events& pending) {
  while (has_room_for(page)) {
    pending.clear();
    DeviceMemory memory =
        books_.world.allocate(page, /*is_ahead=*/true, pending);
    const auto address = reinterpret_cast<uintptr_t>(memory.get());
    if (!memory || (!cleared.has(address) && !kept.has(address))) {
      return memory;
    }
    books_.return_pending(memory.get(), pending);
    inside.push_back(std::move(memory));
  }
  return nullptr;
}

// Moves the pages, largest first, until one does not find another place.
void Relocator::move_out_of(
    const Clearing& clearing,
    const Pages& moving,
    const Extent& kept) {
  std::vector<DeviceMemory> inside;
  for (PageEntry* page : moving) {
    Events pending;
    DeviceMemory memory =
        allocate(*page, clearing.extent, kept, inside, pending);
    if (!memory && clearing.is_tight) {
      Request request = request_for(*page, books_.world);
      request.kept = clearing.extent;
      make_gap(request);
      memory = allocate(*page, clearing.extent, kept, inside, pending);
    }
    if (!memory) {
      return;
    }
    move(page, std::move(memory), pending);
  }
}

void Relocator::move(
    PageEntry* page,
    DeviceMemory memory,
    const Events& pending) {
  Freed freed(books_.contention);
  try {
    const Lock lock(books_.mutex);
    residence_.move(page, memory, pending, freed);
  } catch (...) {
    books_.return_pending(memory.get(), pending);
    throw;
  }
}

// Of the moves, successful or not.
void Relocator::end(const Pages& moving) noexcept {
  if (moving.empty()) {
    return;
  }
  Freed freed(books_.contention);
  {
    const Lock lock(books_.mutex);
    for (PageEntry* page : moving) {
      if (page->state == PageEntry::State::kArriving) {
        residence_.stay(page, freed);
      }
      residence_.drop_own_pin(page, freed);
    }
  }
  arrived_.notify_all();
}

} // namespace at::cuda::lms
