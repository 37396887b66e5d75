#include <ATen/cuda/detail/LMSDevice.h>

#include <ATen/cuda/detail/LMSAllocator.h>
#include <ATen/cuda/detail/LMSDeviceLock.h>
#include <ATen/cuda/detail/LMSHostMemory.h>
#include <ATen/cuda/detail/LMSSettings.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <iomanip>
#include <sstream>

namespace at::cuda::lms {
namespace {

constexpr double kMiB = 1024 * 1024;
constexpr size_t kRoomSteps = 16; // of room_for_operators

std::string format_size(size_t bytes) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(2) << static_cast<double>(bytes) / kMiB
      << " MiB";
  return out.str();
}

std::pair<size_t, size_t> free_and_total(c10::DeviceIndex device) {
  c10::cuda::CUDAGuard guard(device);
  size_t free = 0;
  size_t total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return {free, total};
}

} // namespace

// 95 % of what the device has free plus what the allocator already holds: the
// rest is for memory that does not come from the caching allocator.
size_t Device::default_limit() {
  const size_t free = free_and_total(index_).first;
  Lock lock(*this);
  return (free + layout_.reserved()) / 100 * 95;
}

// The caching allocator enforces the limit itself, as a fraction of the
// device's memory.
void Device::apply_limit(size_t bytes) {
  const size_t requested = bytes;
  if (bytes == 0) {
    bytes = default_limit();
  }
  const double total = static_cast<double>(free_and_total(index_).second);
  double fraction = 0;
  {
    Lock lock(*this);
    limit_ = bytes;
    requested_limit_ = requested;
    // Half a byte more, so that the allocator's rounding gives it back exactly.
    const double wanted = (static_cast<double>(bytes) + 0.5) / total;
    fraction = std::min({wanted, user_fraction_, 1.0});
    limit_ = std::min(limit_, static_cast<size_t>(fraction * total));
    forget_one_segment(); // there may be room for a larger one
    is_limited_ = Settings::get().active();
  }
  if (Settings::get().active()) {
    set_memory_fraction(Allocator::get().native(), fraction, index_);
  }
}

void Device::set_limit(size_t bytes) {
  apply_limit(bytes);
  if (!Settings::get().active()) {
    return;
  }
  for (const Scope scope : {Scope::kSegments, Scope::kAll}) {
    size_t excess = 0;
    {
      Lock lock(*this);
      excess = layout_.reserved() - std::min(layout_.reserved(), limit_);
    }
    if (excess == 0) {
      return;
    }
    shrink({excess, 0}, scope);
  }
}

size_t Device::limit() {
  Lock lock(*this);
  return limit_;
}

size_t Device::room_for_operators() {
  Lock lock(*this);
  const size_t stuck = layout_.allocated() - page_bytes_ +
      static_cast<size_t>(stats_.pinned_bytes[kAll].current);
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

void Device::count(AllocSource source) {
  sources_[static_cast<size_t>(source)].fetch_add(1, std::memory_order_relaxed);
}

DeviceStats Device::stats() {
  Lock lock(*this);
  DeviceStats stats = stats_;
  std::copy(sources_.begin(), sources_.end(), stats.alloc_distribution.begin());
  stats.times = times_.totals();
  stats.free_bytes = layout_.reserved() - layout_.allocated();
  stats.largest_free_bytes = layout_.largest_gap();
  return stats;
}

void Device::reset_peak_stats() {
  Lock lock(*this);
  for (auto* levels :
       {&stats_.pinned,
        &stats_.pinned_bytes,
        &stats_.managed,
        &stats_.managed_bytes}) {
    for (Level& level : *levels) {
      level.peak = level.current;
    }
  }
  stats_.paged_out_bytes.peak = stats_.paged_out_bytes.current;
}

std::string Device::describe_memory() {
  const auto host = HostMemory::get().stats();
  std::ostringstream out;
  Lock lock(*this);
  size_t held = 0;
  size_t reclaimable = 0;
  for (const ManagedStorage* record : records_) {
    held += record->held ? record->bytes : 0;
    reclaimable += record->evictable ? record->bytes : 0;
  }
  for (const Leaving& leaving : leaving_) {
    reclaimable += leaving.block ? leaving.block->size : 0;
  }
  size_t managed_blocks = 0;
  size_t blocks = 0;
  for (const auto& [address, segment] : layout_.segments()) {
    for (const auto& [begin, block] : segment.blocks) {
      blocks += block.size;
      managed_blocks += block.page ? block.size : 0;
    }
  }
  const auto& pinned = stats_.pinned_bytes[kAll];
  out << "Large Model Support on device " << static_cast<int>(index_)
      << " (limit " << format_size(limit_)
      << "): " << format_size(static_cast<size_t>(pinned.current))
      << " pinned by running operators or by escaped addresses ("
      << format_size(held) << " of it by addresses), "
      << format_size(reclaimable) << " reclaimable, "
      << format_size(blocks - managed_blocks) << " not managed, "
      << format_size(static_cast<size_t>(stats_.paged_out_bytes.current))
      << " on the host (" << format_size(host.used) << " of "
      << format_size(host.limit) << " used, " << format_size(host.others)
      << " by other processes).";
  if (!last_failure_.empty() && reclaimable > 0) {
    out << " The last page-out failed: " << last_failure_ << ".";
  }
  out << " One operator's tensors must fit in the limit together. Use a "
         "smaller batch or split the operator, raise the limit with "
         "torch.cuda.set_limit_lms, give LMS more host memory with "
         "torch.cuda.lms.set_host_limit, or drop tensors whose data_ptr() "
         "was taken.";
  return out.str();
}

} // namespace at::cuda::lms
