#include <ATen/cuda/detail/LMSHostMemory.h>

#include <ATen/cuda/detail/LMSCudaEvent.h>
#include <ATen/cuda/detail/LMSHostLimit.h>
#include <ATen/cuda/detail/LMSCoreLayout.h>
#include <ATen/cuda/detail/LMSSettings.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <utility>
#include <vector>

namespace at::cuda::lms {
namespace {

constexpr size_t kMinSlab = size_t{8} << 20; // bytes
constexpr size_t kMediumSlab = size_t{256} << 20; // bytes
constexpr size_t kMaxSlab = size_t{1} << 30; // bytes

} // namespace

HostMemory& HostMemory::get() {
  static auto* memory = new HostMemory(); // leaked: no CUDA calls at exit
  return *memory;
}

HostMemory::HostMemory() : ledger_(HostLedger::default_files()) {}

HostPieces HostMemory::allocate(
    size_t bytes,
    DeviceIndex device,
    Claim claim,
    Wait& wait) {
  const Lock lock(mutex_);
  bytes = round_up(bytes, kAlignment);
  Pool& pool = pool_of(device);
  HostPieces pieces = take(pool, bytes);
  if (pieces.empty() && collect()) {
    pieces = take(pool, bytes);
  }
  while (pieces.empty() && grow(pool, bytes, device, claim, wait)) {
    pieces = take(pool, bytes);
  }
  if (pieces.empty() && !wait.is_needed()) {
    pieces = take_anywhere(bytes);
  }
  if (pieces.empty() && !wait.is_needed() && claim == Claim::kWhole) {
    wait_for_a_copy(wait);
  }
  if (!pieces.empty()) {
    reserve_ahead(pool, bytes, device);
  }
  return pieces;
}

bool HostMemory::finish(Wait& wait) {
  if (!wait.is_needed() || !wait.is_allowed_) {
    return false;
  }
  Wait now = std::exchange(wait, Wait(/*is_allowed=*/true));
  if (now.order_.valid()) {
    now.order_.wait(); // there is no other memory to copy to
    wait.has_waited_ = true;
  }
  // What is being made cannot be stopped, and to unlock memory the driver may
  // wait for the devices.
  for (const HostSlabOrder& order : now.orders_) {
    order.wait();
  }
  now.orders_.clear();
  now.slabs_.clear();
  if (now.bytes_ > 0) { // not before it is free
    const Lock lock(mutex_);
    ledger_.give_back(now.bytes_);
  }
  return wait_on_host(now.event_);
}

void HostMemory::free(HostPieces pieces, Event ready) {
  const Lock lock(mutex_);
  for (const HostRange& piece : pieces) {
    bytes_used_ -= piece.bytes;
  }
  if (ready) {
    freed_.push_back({std::move(pieces), std::move(ready)});
  } else {
    give_back(pieces);
  }
}

void HostMemory::set_limit(size_t bytes) {
  Wait wait(/*is_allowed=*/true);
  {
    const Lock lock(mutex_);
    limit_ = bytes;
    if (!ledger_.has_room(0, limit_locked(), Claim::kWhole) &&
        !Settings::get().is_forked_child()) {
      give_up_unused(wait);
    }
  }
  (void)finish(wait);
}

HostMemory::Stats HostMemory::stats() {
  const Lock lock(mutex_);
  Stats stats;
  stats.limit = limit_locked();
  stats.others = ledger_.others().bytes;
  stats.reserved = ledger_.taken();
  stats.page_locked = stats.reserved;
  for (const auto& [begin, slab] : slabs_) {
    stats.page_locked -= slab.memory->page_locked ? 0 : slab.bytes;
  }
  for (const auto& [key, pool] : pools_) {
    if (is_ready(pool.order) &&
        !(pool.order.get() && pool.order.get()->page_locked)) {
      stats.page_locked -= pool.ordered;
    }
  }
  stats.used = bytes_used_;
  stats.peak_used = peak_used_;
  return stats;
}

void HostMemory::reset_peak() {
  const Lock lock(mutex_);
  peak_used_ = bytes_used_;
}

void HostMemory::trim() {
  if (Settings::get().is_forked_child()) {
    return; // it is the parent's memory
  }
  // Waits for copies so that their memory can be given back as well.
  Wait copies(/*is_allowed=*/true);
  do {
    const Lock lock(mutex_);
    collect();
    wait_for_a_copy(copies);
  } while (finish(copies));
  Wait unused(/*is_allowed=*/true);
  {
    const Lock lock(mutex_);
    give_up_unused(unused);
  }
  (void)finish(unused);
}

bool HostMemory::is_shared() {
  const Lock lock(mutex_);
  return ledger_.is_shared();
}

int HostMemory::node_of(DeviceIndex device) {
  const auto [it, is_new] = node_by_device_.try_emplace(device, kAnyNode);
  if (is_new) {
    it->second = nearest_node(device);
  }
  return it->second;
}

HostMemory::Pool& HostMemory::pool_of(DeviceIndex device) {
  const int node = node_of(device);
  Pool& pool = pools_[node];
  pool.node = node;
  return pool;
}

size_t HostMemory::limit_locked() {
  if (limit_ == 0) {
    limit_ = default_host_limit(ledger_.taken() + ledger_.others().bytes);
  }
  return limit_;
}

// Bytes of the next slab, for a request. They grow with what there is,
// so that little is missing in the end and one more is enough.
size_t HostMemory::next_slab(size_t bytes) const {
  const size_t taken = ledger_.taken();
  return round_up(
      std::max(
          {bytes,
           kMinSlab,
           std::min(taken / 4, kMediumSlab),
           std::min(taken / 64, kMaxSlab)}),
      kHostPage);
}

// Empty if there is no room.
HostPieces HostMemory::take(Pool& pool, size_t bytes) {
  HostPieces pieces = pool.free.take(bytes);
  if (!pieces.empty()) {
    bytes_used_ += bytes;
    peak_used_ = std::max(peak_used_, bytes_used_);
  }
  return pieces;
}

HostPieces HostMemory::take_anywhere(size_t bytes) {
  HostPieces pieces;
  for (auto& [key, pool] : pools_) {
    if (pieces.empty()) {
      pieces = take(pool, bytes);
    }
  }
  return pieces;
}

// Adds the slab that is on order, or else one with room for `bytes`. False if
// it has to be waited for, the limit forbids it or the host has no memory.
bool HostMemory::grow(
    Pool& pool,
    size_t bytes,
    DeviceIndex device,
    Claim claim,
    Wait& wait) {
  const bool is_too_small = pool.order.valid() && pool.ordered < bytes;
  if (is_too_small && !ledger_.has_room(bytes, limit_locked(), claim)) {
    give_up_unused(wait); // for what is needed now
    return false;
  }
  if (!pool.order.valid() && !order(pool, bytes, device, claim, wait)) {
    return false;
  }
  // Also for one that is ready: it must not count how fast slabs are made.
  if (!wait.is_allowed_ || !wait.has_waited_ || !is_ready(pool.order)) {
    wait.order_ = pool.order;
    wait.is_needed_ = true;
    return false;
  }
  return receive_order(pool);
}

bool HostMemory::order(
    Pool& pool,
    size_t bytes,
    DeviceIndex device,
    Claim claim,
    Wait& wait) {
  const size_t limit = limit_locked();
  bytes = round_up(bytes, kHostPage);
  if (is_stopped_) {
    return false;
  }
  for (const size_t size : {next_slab(bytes), bytes}) {
    if (ledger_.take(size, limit, claim)) {
      place_order(pool, size, device);
      return true;
    }
  }
  give_up_unused(wait);
  return false;
}

// Orders the next slab if there is no room for another such request.
void HostMemory::reserve_ahead(Pool& pool, size_t bytes, DeviceIndex device) {
  if (!pool.reserves_ahead || pool.order.valid() || is_stopped_) {
    return;
  }
  const size_t size = next_slab(std::min(bytes, kMaxSlab));
  if (pool.free.room() >= size || (collect() && pool.free.room() >= size)) {
    return;
  }
  pool.reserves_ahead = ledger_.take(size, limit_locked(), Claim::kShare);
  if (pool.reserves_ahead) {
    place_order(pool, size, device);
  }
}

// The bytes have been taken from the ledger.
void HostMemory::place_order(Pool& pool, size_t bytes, DeviceIndex device) {
  // A process that ends waits for what is being made, before CUDA goes away.
  static const int registered = std::atexit([] { HostMemory::get().stop(); });
  (void)registered; // without it the exit may cut a CUDA call short
  pool.order = order_slab(bytes, device, pool.node);
  pool.ordered = bytes;
}

// The slab's memory becomes free memory. False if there is none: the host's is
// spent.
bool HostMemory::receive_order(Pool& pool) {
  const auto slab = std::exchange(pool.order, {}).get();
  pool.reserves_ahead = slab && slab->page_locked;
  if (!slab) {
    ledger_.give_back(pool.ordered);
    return false;
  }
  char* begin = slab->memory.get();
  slabs_[begin] = {slab, pool.ordered, &pool};
  pool.free.add_slab(begin, pool.ordered);
  return true;
}

// Gives back slabs that hold nothing and what is on order.
void HostMemory::give_up_unused(Wait& wait) {
  if (!wait.is_allowed_) {
    return;
  }
  for (auto& [key, pool] : pools_) {
    if (pool.order.valid()) {
      wait.orders_.push_back(std::exchange(pool.order, {}));
      wait.bytes_ += pool.ordered;
    }
  }
  for (auto it = slabs_.begin(); it != slabs_.end();) {
    if (it->second.pool->free.remove_slab(it->first)) {
      wait.bytes_ += it->second.bytes;
      wait.slabs_.push_back(std::move(it->second.memory));
      it = slabs_.erase(it);
    } else {
      ++it;
    }
  }
  wait.is_needed_ = wait.bytes_ > 0;
}

// Returns what no copy reads any more to the free memory. False if there was
// nothing.
bool HostMemory::collect() {
  bool any = false;
  for (auto it = freed_.begin(); it != freed_.end();) {
    if (has_happened(it->ready)) {
      give_back(it->pieces);
      it = freed_.erase(it);
      any = true;
    } else {
      ++it;
    }
  }
  return any;
}

// No memory is left that is not being copied from: the oldest copy is likely to
// be the first to end.
void HostMemory::wait_for_a_copy(Wait& wait) {
  if (!freed_.empty()) {
    wait.await(freed_.front().ready);
  }
}

void HostMemory::give_back(const HostPieces& pieces) {
  for (const HostRange& piece : pieces) {
    const auto slab = std::prev(slabs_.upper_bound(piece.begin));
    slab->second.pool->free.give_back(piece);
  }
}

// The process is ending: nothing is ordered any more, and what is being made
// gets done while CUDA is still there.
void HostMemory::stop() {
  if (Settings::get().is_forked_child()) {
    return; // the thread is the parent's
  }
  std::vector<HostSlabOrder> orders;
  {
    const Lock lock(mutex_);
    is_stopped_ = true;
    for (const auto& [key, pool] : pools_) {
      if (pool.order.valid()) {
        orders.push_back(pool.order);
      }
    }
  }
  for (const HostSlabOrder& order : orders) {
    order.wait();
  }
}

} // namespace at::cuda::lms
