#include <ATen/cuda/detail/LMSLimit.h>

#include <ATen/cuda/detail/LMSAllocator.h>
#include <ATen/cuda/detail/LMSDevice.h>
#include <ATen/cuda/detail/LMSDeviceLock.h>
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
void Device::apply_limit(size_t bytes) {
  const auto [free, total] = free_and_total(index_);
  {
    Lock lock(*this);
    const double allowed = std::min(user_fraction_, 1.0);
    const size_t ceiling = std::min(
        bytes > 0 ? bytes : std::numeric_limits<size_t>::max(),
        static_cast<size_t>(allowed * static_cast<double>(total)));
    requested_limit_ = bytes;
    limit_rule_.set(
        total, ceiling, /*is_default=*/bytes == 0, {free, layout_.reserved()});
    is_limited_ = Settings::get().active();
    adopt_limit();
  }
  enforce_limit();
}

// The rule's limit has changed.
void Device::adopt_limit() {
  limit_ = limit_rule_.bytes();
  is_limit_new_ = is_limit_to_obey_ = true;
  forget_one_segment(); // there may be room for a larger one
  lost_to_requests_ = 0;
}

// Tells the allocator of a new limit. False if there is none.
bool Device::enforce_limit() {
  if (!is_limit_new_.exchange(false)) {
    return false;
  }
  double fraction = 1;
  {
    Lock lock(*this);
    if (!is_limited_) {
      return false;
    }
    fraction = limit_rule_.fraction();
  }
  set_memory_fraction(Allocator::get().native(), fraction, index_);
  return true;
}

// Called between operators.
void Device::look_at_card() noexcept {
  try {
    if (const auto free = free_bytes(index_)) {
      Lock lock(*this);
      if (is_limited_ && limit_rule_.look({*free, layout_.reserved()})) {
        adopt_limit();
      }
    }
  } catch (const std::exception& error) {
    TORCH_WARN_ONCE("LMS could not ask for free memory: ", error.what());
  }
}

// The allocator is about to ask the driver for a segment.
void Device::look_at_card_before_growth(size_t bytes) {
  {
    Lock lock(*this);
    if (!is_limited_ || !limit_rule_.follows()) {
      return;
    }
  }
  const auto free = free_bytes(index_);
  Lock lock(*this);
  if (free &&
      limit_rule_.look_before_growth({*free, layout_.reserved()}, bytes)) {
    adopt_limit();
  }
}

// An allocation has failed. If the limit is not why, the driver has refused a
// segment.
void Device::note_failure(const TraceEntry& entry) {
  const size_t growth = growth_for(entry.size_);
  // The entry has what was free, for an address.
  const Limit::Card card{entry.addr_, layout_.reserved()};
  if (is_limited_ && may_reserve(card.reserved + growth) &&
      limit_rule_.learn_refusal(card, growth)) {
    adopt_limit();
  }
}

// Called between operators: what is reserved beyond a new limit goes back to
// the driver.
void Device::obey_limit() noexcept {
  if (Allocator::get().routes_to_pools() ||
      !is_limit_to_obey_.exchange(false)) {
    return;
  }
  try {
    enforce_limit();
    if (excess() > 0) {
      has_evicted_ = is_consolidation_due_ = true;
      if (const auto stream = stream_to_consolidate()) {
        consolidate(*stream);
      }
      give_excess_back();
    }
  } catch (const std::exception& error) {
    TORCH_WARN_ONCE("LMS could not give memory back: ", error.what());
  }
}

// What is reserved beyond the limit.
size_t Device::excess() {
  Lock lock(*this);
  return layout_.reserved() - std::min(layout_.reserved(), limit_);
}

void Device::give_excess_back() {
  for (const Scope scope : {Scope::kSegments, Scope::kAll}) {
    if (const size_t bytes = excess()) {
      shrink({bytes, 0}, scope);
    }
  }
}

void Device::set_limit(size_t bytes) {
  apply_limit(bytes);
  is_limit_to_obey_ = false;
  if (Settings::get().active()) {
    give_excess_back();
  }
}

size_t Device::limit() {
  Lock lock(*this);
  return limit_;
}

// Bytes that cannot be evicted.
size_t Device::stuck_bytes() const {
  return layout_.allocated() - page_bytes_ +
      static_cast<size_t>(stats_.pinned_bytes[kAll].current);
}

size_t Device::room_for_one() {
  Lock lock(*this);
  const size_t kept =
      stuck_bytes() + limit_ / kSparePart + rest_for_small(limit_, 0);
  return (limit_ - std::min(limit_, kept)) / kGrowthUnit * kGrowthUnit;
}

size_t Device::room_for_operators() {
  Lock lock(*this);
  const size_t stuck = stuck_bytes();
  const size_t step = limit_ / kRoomSteps + 1;
  return (limit_ - std::min(limit_, stuck)) / step * step;
}

size_t Device::requested_limit() {
  Lock lock(*this);
  return requested_limit_;
}

void Device::set_user_fraction(double fraction) {
  {
    Lock lock(*this);
    user_fraction_ = fraction;
  }
  apply_limit(requested_limit());
}

double Device::user_fraction() {
  Lock lock(*this);
  return user_fraction_;
}

void Device::remove_limit() {
  {
    Lock lock(*this);
    is_limited_ = false;
  }
  set_memory_fraction(Allocator::get().native(), user_fraction(), index_);
}

} // namespace at::cuda::lms
