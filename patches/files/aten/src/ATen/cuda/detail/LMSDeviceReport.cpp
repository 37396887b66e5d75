#include <ATen/cuda/detail/LMSDeviceReport.h>

#include <ATen/cuda/detail/LMSDevice.h>
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

DeviceStats stats_of(Device& device) {
  const Lock lock(device.mutex());
  DeviceStats stats = device.pager().books.stats;
  const auto& served = device.room().served();
  std::copy(served.begin(), served.end(), stats.alloc_distribution.begin());
  stats.times = device.world().times().totals();
  const Layout& layout = device.map().layout();
  stats.free_bytes = layout.reserved() - layout.allocated();
  stats.largest_free_bytes = layout.largest_gap();
  return stats;
}

void reset_peaks(Device& device) {
  const Lock lock(device.mutex());
  DeviceStats& stats = device.pager().books.stats;
  for (auto* levels :
       {&stats.pinned,
        &stats.pinned_bytes,
        &stats.managed,
        &stats.managed_bytes}) {
    for (Level& level : *levels) {
      level.peak = level.current;
    }
  }
  for (Level* level : {&stats.paged_out_bytes, &stats.on_disk_bytes}) {
    level->peak = level->current;
  }
}

std::vector<PageAway> pages_away(Device& device) {
  using State = PageEntry::State;
  using Place = PageAway::Place;
  std::vector<PageAway> found;
  const Lock lock(device.mutex());
  for (const PageEntry* page : device.pager().books.pages.all()) {
    const bool is_away = page->state == State::kPagedOut;
    if (page->state == State::kDropped || is_away || !page->host.empty()) {
      const Place place = page->state == State::kDropped ? Place::kDropped
          : is_away && page->host.empty()                ? Place::kDisk
          : is_away                                      ? Place::kHost
                                                         : Place::kBoth;
      found.push_back({page->id, page->bytes, place});
    }
  }
  return found;
}

std::string describe_memory(Device& device) {
  const auto host = HostMemory::get().stats();
  std::ostringstream out;
  const size_t requested = device.limit().requested();
  const Lock lock(device.mutex());
  Books& books = device.pager().books;
  const Layout& layout = books.map.layout();
  const size_t limit = books.map.limit();
  size_t held = 0;
  size_t reclaimable = 0;
  for (PageEntry* page : books.pages.all()) {
    held += managed(page)->held ? page->bytes : 0;
    reclaimable += page->evictable ? page->bytes : 0;
  }
  for (const Draining& draining : books.draining.all()) {
    reclaimable += draining.block ? draining.block->size : 0;
  }
  size_t managed_blocks = 0;
  size_t blocks = 0;
  for (const auto& [address, segment] : layout.segments()) {
    for (const auto& [begin, block] : segment.blocks) {
      blocks += block.size;
      managed_blocks += block.page ? block.size : 0;
    }
  }
  const auto& pinned = books.stats.pinned_bytes[kAll];
  out << "Large Model Support on device " << static_cast<int>(device.index())
      << " (limit " << format_size(limit)
      << (limit < requested ? ", all that the card has for it" : "")
      << "): " << format_size(static_cast<size_t>(pinned.current))
      << " pinned by running operators or by escaped addresses ("
      << format_size(held) << " of it by addresses), "
      << format_size(reclaimable) << " reclaimable, "
      << format_size(blocks - managed_blocks) << " not managed, "
      << format_size(layout.reserved() - layout.allocated())
      << " free in pieces of at most " << format_size(layout.largest_gap())
      << ", "
      << format_size(static_cast<size_t>(books.stats.paged_out_bytes.current))
      << " on the host (" << format_size(host.used) << " of "
      << format_size(host.limit) << " used, " << format_size(host.others)
      << " by other processes).";
  const std::string& failure = device.pager().residence.last_failure();
  if (!failure.empty() && reclaimable > 0) {
    out << " The last page-out failed: " << failure << ".";
  }
  out << " One operator's tensors must fit in the limit together, and so must "
         "one compiled kernel's: leave an optimizer's step uncompiled. Use a "
         "smaller batch or split the operator, raise the limit with "
         "torch.cuda.set_limit_lms, give LMS more host memory with "
         "torch.cuda.lms.set_host_limit, or drop tensors whose data_ptr() "
         "was taken. Where the pieces are too small, call "
         "torch.cuda.reclaim_inactive() before the operator: it joins them.";
  return out.str();
}

} // namespace at::cuda::lms
