#include <ATen/cuda/detail/LMSDeviceRoom.h>

#include <ATen/cuda/detail/LMSAllocator.h>
#include <ATen/cuda/detail/LMSCudaCaptures.h>
#include <ATen/cuda/detail/LMSOperatorCollectives.h>
#include <ATen/cuda/detail/LMSOperatorRandom.h>
#include <ATen/cuda/detail/LMSDevice.h>
#include <c10/cuda/CUDAGuard.h>

#include <set>
#include <utility>

namespace at::cuda::lms {

Reclaimed Room::reclaim(
    const Request& wanted,
    Scope scope,
    bool may_wait) noexcept {
  return is_capturing()
      ? Reclaimed()
      : device_.pager().reclaimer.reclaim(wanted, scope, may_wait);
}

void Room::make_gap(const Request& wanted) noexcept {
  if (!is_capturing()) {
    device_.pager().relocator.make_gap(wanted);
  }
}

bool Room::is_needed(const Request& request) {
  {
    const Lock lock(device_.mutex());
    if (device_.map().layout().has_gap(request.bytes, request.stream)) {
      return false;
    }
  }
  return must_reclaim(request.bytes);
}

bool Room::must_reclaim(size_t bytes) {
  const auto may_grow = [&] {
    const Lock lock(device_.mutex());
    return device_.map().may_grow(bytes);
  };
  if (!may_grow()) {
    return true;
  }
  if (is_capturing()) {
    return false;
  }
  device_.limit().look_before_growth(growth_for(bytes));
  return !may_grow();
}

bool Room::is_there_ahead(const Request& request) {
  {
    const Lock lock(device_.mutex());
    if (device_.map().layout().has_gap(request.bytes, request.stream)) {
      return true;
    }
  }
  return device_.limit().may_take_ahead(growth_for(request.bytes));
}

bool Room::is_there_beside(const Request& request) {
  const size_t growth = growth_for(request.bytes);
  {
    const Lock lock(device_.mutex());
    const MemoryMap& map = device_.map();
    if (map.layout().has_gap(request.bytes, request.stream)) {
      return true;
    }
    if (!map.may_reserve(map.layout().reserved() + growth)) {
      return false;
    }
  }
  return device_.limit().may_take_ahead(growth);
}

bool Room::has_free(size_t bytes) {
  const Lock lock(device_.mutex());
  const Layout& layout = device_.map().layout();
  return layout.reserved() - layout.allocated() >= bytes;
}

bool Room::wait_for_others(uint64_t seen, Contention::GiveUp& give_up) {
  return !draws_again() &&
      device_.pager().books.contention.wait_for_others(
          seen, give_up, release_completed_collectives);
}

void Room::shrink(const Request& wanted, Scope scope) {
  reclaim(wanted, scope, /*may_wait=*/true);
  settle();
  empty_cache(Allocator::get().native());
}

void Room::make_for_pool() {
  {
    const Lock lock(device_.mutex());
    const MemoryMap& map = device_.map();
    if (map.may_reserve(map.layout().reserved() + growth_for(1 + kSmallSize))) {
      return;
    }
  }
  shrink({}, Scope::kAll);
}

void Room::wait_for_memory(cudaStream_t stream, const Events& pending) {
  if (!pending.empty()) {
    const Lock lock(device_.mutex());
    device_.world().wait(stream, pending, Activity::kWaitForMemory);
    // It may free the memory without using it.
    device_.world().streams().note_work(stream);
  }
}

void Room::settle() {
  free_memory_in_doubt();
  Books& books = device_.pager().books;
  Freed freed(books.contention);
  Events pending;
  std::set<uintptr_t> homes; // of expandable segments, see DrainingMemory
  {
    const Lock lock(books.mutex);
    for (const auto& [address, segment] : books.map.layout().segments()) {
      if (segment.is_expandable) {
        homes.insert(segment.stream);
      }
    }
    books.draining.hand_all_over(freed);
    // They stay noted: the memory may get another owner meanwhile.
    pending = books.draining.handover().pending();
  }
  // The host waits because the driver does not know of these copies. Before it
  // unmaps memory the allocator waits for a segment's stream, but for the
  // current device's where that is the default stream.
  c10::cuda::CUDAGuard guard(device_.index());
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
  const Lock lock(books.mutex);
  books.draining.handover().forget(pending);
}

void Room::keep_in_doubt(DeviceMemory memory) {
  in_doubt_.push_back(std::move(memory));
  is_any_in_doubt_.store(true);
}

void Room::free_memory_in_doubt() {
  if (!is_any_in_doubt_.load(std::memory_order_relaxed) || may_be_captures()) {
    return;
  }
  std::vector<DeviceMemory> memory;
  {
    const Lock lock(device_.mutex());
    memory.swap(in_doubt_);
    is_any_in_doubt_.store(false);
  }
  // The host waits because the streams that may use the memory may be gone.
  c10::cuda::CUDAGuard guard(device_.index());
  C10_CUDA_CHECK(cudaDeviceSynchronize());
}

void Room::count(AllocSource source) {
  served_[static_cast<size_t>(source)].fetch_add(1, std::memory_order_relaxed);
}

} // namespace at::cuda::lms
