#include <ATen/cuda/detail/LMSDevice.h>

#include <ATen/cuda/detail/LMSDeviceLock.h>
#include <ATen/cuda/detail/LMSHostMemory.h>

#include <algorithm>
#include <iomanip>
#include <sstream>

namespace at::cuda::lms {
namespace {

constexpr double kMiB = 1024 * 1024;

std::string format_size(size_t bytes) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(2) << static_cast<double>(bytes) / kMiB
      << " MiB";
  return out.str();
}

} // namespace

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
  for (const Draining& draining : draining_) {
    reclaimable += draining.block ? draining.block->size : 0;
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
      << (limit_ < requested_limit_ ? ", all that the card has for it" : "")
      << "): " << format_size(static_cast<size_t>(pinned.current))
      << " pinned by running operators or by escaped addresses ("
      << format_size(held) << " of it by addresses), "
      << format_size(reclaimable) << " reclaimable, "
      << format_size(blocks - managed_blocks) << " not managed, "
      << format_size(layout_.reserved() - layout_.allocated())
      << " free in pieces of at most " << format_size(layout_.largest_gap())
      << ", "
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
         "was taken. Where the pieces are too small, call "
         "torch.cuda.reclaim_inactive() before the operator: it joins them.";
  return out.str();
}

} // namespace at::cuda::lms
