#include <ATen/cuda/detail/LMSDeviceConsolidation.h>

#include <ATen/cuda/detail/LMSAllocator.h>
#include <ATen/cuda/detail/LMSCudaCaptures.h>
#include <ATen/cuda/detail/LMSDevice.h>

#include <algorithm>
#include <map>

namespace at::cuda::lms {
namespace {

// Segments of small storages have this size, others are a multiple of it.
constexpr size_t kUnit = size_t{2} << 20; // bytes
constexpr size_t kTightPart = 64; // of the limit, see Gather
constexpr int kAttempts = 4; // to take memory as one segment
constexpr int kMostLost = 2; // times that the one is lost to small storages

// The stream that has more than half of the memory, where it can become one
// segment.
std::optional<uintptr_t> main_stream(const Layout& layout) {
  std::map<uintptr_t, size_t> reserved; // bytes, by stream
  for (const auto& [address, segment] : layout.segments()) {
    if (segment.is_private || segment.is_expandable) {
      return std::nullopt;
    }
    reserved[segment.stream] += segment.size;
  }
  for (const auto& [stream, bytes] : reserved) {
    if (bytes > layout.reserved() / 2) {
      return stream;
    }
  }
  return std::nullopt;
}

} // namespace

size_t Consolidation::room_for_small() {
  const Lock lock(device_.mutex());
  const MemoryMap& map = device_.map();
  return map.kept_for_small() > 0 ? std::min(map.kept_for_small(), map.limit())
                                  : map.limit();
}

bool Consolidation::has_one_segment() {
  const Lock lock(device_.mutex());
  return one_segment() != nullptr;
}

const Segment* Consolidation::one_segment() {
  const auto& segments = device_.map().layout().segments();
  const auto one = segments.find(one_segment_);
  return one == segments.end() ? nullptr : &one->second;
}

void Consolidation::take_place() noexcept {
  const auto& is_due = device_.pager().books.is_consolidation_due;
  if (C10_LIKELY(!is_due.load(std::memory_order_relaxed))) {
    return;
  }
  try {
    if (const auto stream = this->stream()) {
      take_one_segment(*stream);
    }
  } catch (const std::exception& error) {
    device_.world().warn("LMS could not take memory as one segment: ", error);
  }
}

// The stream whose segments are to become one, none if they shall stay.
std::optional<cudaStream_t> Consolidation::stream() {
  Books& books = device_.pager().books;
  const Lock lock(books.mutex);
  if (!books.world.traits().joins_memory ||
      Allocator::get().routes_to_pools()) {
    return std::nullopt;
  }
  if (!books.is_consolidation_due.exchange(false) || is_done_) {
    return std::nullopt;
  }
  const auto stream = main_stream(books.map.layout());
  if (!stream || !can_split_all_blocks()) {
    return std::nullopt;
  }
  is_done_ = true;
  books.has_evicted = false;
  return reinterpret_cast<cudaStream_t>(*stream);
}

void Consolidation::take_one_segment(cudaStream_t stream) {
  const auto working = device_.sharing().working();
  size_t small = 0;
  {
    const Lock lock(device_.mutex());
    for (const auto& [address, segment] : device_.map().layout().segments()) {
      small += segment.size <= kUnit ? segment.size : 0;
    }
  }
  device_.room().shrink({}, Scope::kAll);
  // Somebody else may take memory meanwhile.
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const size_t bytes = size_of_one_segment(small);
    if (bytes <= growth_for(1 + kSmallSize)) {
      return;
    }
    device_.limit().look_before_growth(bytes);
    if (!device_.limit().enforce()) {
      Allocator::get().take_segment(device_.index(), bytes, stream);
    }
    if (!device_.limit().enforce()) {
      note_one_segment(bytes, small);
      return;
    }
  }
  const Lock lock(device_.mutex());
  is_done_ = true; // it was tried: the memory comes piece by piece
}

// Bytes, all that the limit has room for but for what is left for small ones.
size_t Consolidation::size_of_one_segment(size_t small) {
  const Lock lock(device_.mutex());
  MemoryMap& map = device_.map();
  is_done_ = true;
  map.keep_for_small(rest_for_small(map.limit(), small));
  const size_t kept = map.layout().reserved() + map.kept_for_small();
  return (map.limit() - std::min(map.limit(), kept)) / kUnit * kUnit;
}

void Consolidation::note_one_segment(size_t bytes, size_t small) {
  const Lock lock(device_.mutex());
  MemoryMap& map = device_.map();
  map.forget_unmanaged();
  // Large pages cannot lie in what is left for small ones.
  device_.pager().books.policy->set_capacity(
      std::min(map.limit(), bytes + map.layout().allocated() + small));
  for (const auto& [address, segment] : map.layout().segments()) {
    one_segment_ = segment.size == bytes ? address : one_segment_;
  }
}

void Consolidation::note_lost_segment(uintptr_t address) {
  if (address != one_segment_) {
    return;
  }
  forget();
  if (CurrentRequest::get()) {
    is_done_ = ++lost_to_requests_ >= kMostLost;
  }
}

void Consolidation::gather(cudaStream_t stream, Gather how) {
  if (is_capturing() || Allocator::get().routes_to_pools()) {
    return;
  }
  if (has_expandable_segments() || !can_split_all_blocks()) {
    device_.room().shrink({}, Scope::kAll); // need not be taken as one
  } else if (how == Gather::kRoomy) {
    take_one_segment(stream);
  } else {
    take_tight_segment(stream);
  }
}

bool Consolidation::has_expandable_segments() {
  const Lock lock(device_.mutex());
  const auto& segments = device_.map().layout().segments();
  return std::any_of(segments.begin(), segments.end(), [](const auto& entry) {
    return entry.second.is_expandable;
  });
}

// For one operator: it does not count as the one segment, so that all of the
// memory is taken anew when it next runs short.
void Consolidation::take_tight_segment(cudaStream_t stream) {
  device_.room().shrink({}, Scope::kAll);
  size_t bytes = 0;
  {
    const Lock lock(device_.mutex());
    const MemoryMap& map = device_.map();
    const size_t small =
        std::max(kUnit, map.limit() / kTightPart / kUnit * kUnit);
    const size_t kept = map.layout().reserved() + small;
    bytes = (map.limit() - std::min(map.limit(), kept)) / kUnit * kUnit;
  }
  if (bytes > 0) {
    Allocator::get().take_segment(device_.index(), bytes, stream);
  }
}

// When memory runs short again, all of it is taken anew.
void Consolidation::forget() {
  Books& books = device_.pager().books;
  one_segment_ = 0;
  is_done_ = false;
  books.map.keep_for_small(0);
  books.has_evicted = books.is_consolidation_due = false;
  books.policy->set_capacity(books.map.limit());
}

void Consolidation::start_anew() {
  forget();
  lost_to_requests_ = 0;
}

} // namespace at::cuda::lms
