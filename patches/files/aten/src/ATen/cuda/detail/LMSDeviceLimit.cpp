#include <ATen/cuda/detail/LMSDeviceLimit.h>

#include <ATen/cuda/detail/LMSAllocator.h>
#include <ATen/cuda/detail/LMSDevice.h>
#include <ATen/cuda/detail/LMSSettings.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

// How much device memory the caching allocator may reserve, see Note [The limit
// follows the card].

namespace at::cuda::lms {
namespace {

constexpr size_t kRoomSteps = 16; // of room_for_operators
constexpr size_t kSparePart = 64; // of the limit, see room_for_one
constexpr size_t kGrowthUnit = size_t{2} << 20; // bytes, of large segments

std::pair<size_t, size_t> free_and_total(c10::DeviceIndex device) {
  c10::cuda::CUDAGuard guard(device);
  size_t free = 0;
  size_t total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return {free, total};
}

// Nothing if the driver does not say.
std::optional<size_t> free_bytes(c10::DeviceIndex device) {
  c10::cuda::CUDAGuard guard(device);
  size_t free = 0;
  size_t total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) {
    (void)cudaGetLastError(); // it is asked again
    return std::nullopt;
  }
  return free;
}

} // namespace

// The caching allocator enforces the limit itself, as a fraction of the
// device's memory.
void CardLimit::apply(size_t bytes) {
  const auto [free, total] = free_and_total(device_.index());
  device_.sharing().open();
  {
    const Lock lock(device_.mutex());
    const double allowed = std::min(user_fraction_, 1.0);
    const size_t ceiling = std::min(
        bytes > 0 ? bytes : std::numeric_limits<size_t>::max(),
        static_cast<size_t>(allowed * static_cast<double>(total)));
    requested_ = bytes;
    rule_.set(
        total,
        ceiling,
        /*is_default=*/bytes == 0,
        card(free));
    device_.map().set_limited(Settings::get().active());
    adopt();
  }
  enforce();
}

// The rule's limit has changed.
void CardLimit::adopt() {
  device_.map().set_limit(rule_.bytes());
  is_new_ = is_to_obey_ = true;
  device_.consolidation().start_anew();
}

// Tells the allocator of a new limit. False if there is none.
bool CardLimit::enforce() {
  if (!is_new_.exchange(false)) {
    return false;
  }
  double fraction = 1;
  {
    const Lock lock(device_.mutex());
    if (!device_.map().is_limited()) {
      return false;
    }
    fraction = rule_.fraction();
  }
  set_memory_fraction(Allocator::get().native(), fraction, device_.index());
  return true;
}

// What the card has, and others. With the mutex.
Limit::Card CardLimit::card(size_t free) {
  const Sharers others = device_.sharing().others();
  return {
      free,
      device_.map().layout().reserved(),
      others.obtainable(Sharers::kNearRest),
      others.obtainable(Sharers::kLongRest)};
}

size_t CardLimit::free_on_card() {
  return free_bytes(device_.index()).value_or(0);
}

// Called between operators.
void CardLimit::look() noexcept {
  try {
    if (const auto free = free_bytes(device_.index())) {
      const Lock lock(device_.mutex());
      if (device_.map().is_limited() && rule_.look(card(*free))) {
        adopt();
      }
    }
  } catch (const std::exception& error) {
    device_.world().warn("LMS could not ask for free memory: ", error);
  }
}

void CardLimit::look_soon() {
  const Lock lock(device_.mutex());
  rule_.look_soon();
}

void CardLimit::set_share(std::optional<size_t> bytes) {
  const Lock lock(device_.mutex());
  if (device_.map().is_limited() &&
      rule_.set_share(bytes.value_or(Limit::kAll))) {
    adopt();
  }
}

// The allocator is about to ask the driver for a segment.
void CardLimit::look_before_growth(size_t bytes) {
  {
    const Lock lock(device_.mutex());
    if (!device_.map().is_limited() || !rule_.follows()) {
      return;
    }
  }
  auto free = free_bytes(device_.index());
  if (!free) {
    return;
  }
  size_t needed = 0;
  {
    const Lock lock(device_.mutex());
    const auto card = this->card(*free);
    needed = Limit::needed(card, bytes);
    if (*free >= needed ||
        // The allocator's mutex is not held while others are waited for.
        (CurrentRequest::get() && device_.sharing().others().are_any())) {
      return;
    }
  }
  if (device_.sharing().ask(bytes, needed)) {
    return;
  }
  free = free_bytes(device_.index());
  const Lock lock(device_.mutex());
  if (free && rule_.sink({*free, device_.map().layout().reserved()})) {
    adopt();
  }
}

// An allocation has failed. If the limit is not why, the driver has refused a
// segment.
void CardLimit::note_failure(const TraceEntry& entry) {
  const size_t growth = growth_for(entry.size_);
  // The entry has what was free, for an address.
  const Limit::Card has{entry.addr_, device_.map().layout().reserved()};
  if (!device_.map().is_limited() ||
      !device_.map().may_reserve(has.reserved + growth)) {
    return;
  }
  const CurrentRequest* request = CurrentRequest::get();
  if (request && request->may_reclaim && device_.sharing().others().are_any()) {
    refused_ = growth;
  } else if (rule_.learn_refusal(has, growth)) {
    adopt();
  }
}

bool CardLimit::recover() {
  if (const size_t growth = refused_.exchange(0)) {
    if (device_.sharing().ask(growth, growth)) {
      return true;
    }
    const auto free = free_bytes(device_.index());
    const Lock lock(device_.mutex());
    if (free &&
        rule_.learn_refusal(
            {*free, device_.map().layout().reserved()}, growth)) {
      adopt();
    }
  }
  return enforce();
}

bool CardLimit::rise(size_t growth) {
  const bool is_given = wait_for_others(growth);
  if (const auto free = free_bytes(device_.index())) {
    const Lock lock(device_.mutex());
    if (device_.map().is_limited() && rule_.rise(card(*free))) {
      adopt();
    }
  }
  return enforce() || is_given;
}

// True if they have given what a segment of so many bytes lacks.
bool CardLimit::wait_for_others(size_t growth) {
  std::optional<size_t> needed;
  {
    const Lock lock(device_.mutex());
    if (device_.map().is_limited()) {
      needed = rule_.needed_for_limit(card(0), growth);
    }
  }
  return needed && free_on_card() < *needed &&
      device_.sharing().ask(growth, *needed, Sharing::kBeforeAnError);
}

// What comes ahead of its use does not take what is kept free, and nobody is
// asked for it.
bool CardLimit::may_take_ahead(size_t bytes) {
  if (C10_LIKELY(!device_.sharing().are_others())) {
    return true;
  }
  const auto free = free_bytes(device_.index());
  const Lock lock(device_.mutex());
  return !free ||
      *free >= Limit::needed({*free, device_.map().layout().reserved()}, bytes);
}

// Called between operators: what is reserved beyond a new limit goes back to
// the driver.
void CardLimit::obey() noexcept {
  if (C10_LIKELY(!is_to_obey_.load(std::memory_order_relaxed)) ||
      Allocator::get().routes_to_pools() || !is_to_obey_.exchange(false)) {
    return;
  }
  const auto working = device_.sharing().working();
  const auto giving = device_.sharing().giving_way();
  try {
    enforce();
    if (excess() > 0) {
      device_.pager().books.note_shortage();
      device_.consolidation().take_place();
      give_excess_back();
    }
  } catch (const std::exception& error) {
    device_.world().warn("LMS could not give memory back: ", error);
  }
}

// What is reserved beyond the limit.
size_t CardLimit::excess() {
  const Lock lock(device_.mutex());
  return device_.map().layout().reserved() -
      std::min(device_.map().layout().reserved(), device_.map().limit());
}

void CardLimit::give_excess_back() {
  for (const Scope scope : {Scope::kSegments, Scope::kAll}) {
    if (const size_t bytes = excess()) {
      device_.room().shrink({bytes, 0}, scope);
    }
  }
}

void CardLimit::set(size_t bytes) {
  apply(bytes);
  if (Settings::get().active()) {
    device_.sharing().start();
  }
  is_to_obey_ = false;
  if (Settings::get().active()) {
    give_excess_back();
  }
}

size_t CardLimit::bytes() {
  const Lock lock(device_.mutex());
  return device_.map().limit();
}

// Bytes that cannot be evicted.
size_t CardLimit::stuck_bytes() {
  const auto& pinned = device_.pager().books.stats.pinned_bytes[kAll];
  return device_.map().unmanaged() + static_cast<size_t>(pinned.current);
}

size_t CardLimit::room_for_one() {
  const Lock lock(device_.mutex());
  const size_t limit = device_.map().limit();
  const size_t kept =
      stuck_bytes() + limit / kSparePart + rest_for_small(limit, 0);
  return (limit - std::min(limit, kept)) / kGrowthUnit * kGrowthUnit;
}

size_t CardLimit::room_for_operators() {
  const Lock lock(device_.mutex());
  const size_t limit = device_.map().limit();
  const size_t step = limit / kRoomSteps + 1;
  return (limit - std::min(limit, stuck_bytes())) / step * step;
}

size_t CardLimit::requested() {
  const Lock lock(device_.mutex());
  return requested_;
}

void CardLimit::set_user_fraction(double fraction) {
  {
    const Lock lock(device_.mutex());
    user_fraction_ = fraction;
  }
  apply(requested());
}

double CardLimit::user_fraction() {
  const Lock lock(device_.mutex());
  return user_fraction_;
}

void CardLimit::remove() {
  {
    const Lock lock(device_.mutex());
    device_.map().set_limited(false);
  }
  set_memory_fraction(
      Allocator::get().native(), user_fraction(), device_.index());
}

} // namespace at::cuda::lms
