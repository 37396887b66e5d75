#include <ATen/cuda/detail/LMSDevice.h>

#include <ATen/cuda/detail/LMSAllocator.h>
#include <ATen/cuda/detail/LMSCaptures.h>
#include <ATen/cuda/detail/LMSDeviceLock.h>
#include <ATen/cuda/detail/LMSSettings.h>

#include <algorithm>
#include <optional>

// Note [One segment]
// ~~~~~~~~~~~~~~~~~~
// The caching allocator gets memory from the driver in segments as large as the
// requests of the moment, and a block never spans two of them. While a model
// fits that hardly matters. Once storages have to be evicted, it does: a
// request that no segment can serve needs a whole segment to be given back, and
// cudaFree blocks the host until the device is idle. So when memory first runs
// short, everything evictable is evicted, and the device's memory is taken anew
// as one segment. It costs a page-out of the model, once, and once more when
// the program has given the segment back by emptying the cache or the limit has
// changed.
//
// A part is left for the segments of small storages. While the one segment is
// empty they may outgrow their part: the allocator then gives it back, and all
// is taken anew once large storages run short. Where that goes on (the backward
// pass uses large storages, the optimizer as many small ones), everything would
// be evicted in each iteration. So after kMostLost times memory stays as it
// comes, until there is a new limit.
//
// A segment belongs to one stream, so programs that have allocated on several
// are left alone, and those with expandable segments, which are one range of
// addresses already. A stream that comes later is lent what it needs (Note
// [Lending memory to other streams]).

namespace at::cuda::lms {
namespace {

// Segments of small storages have this size, others are a multiple of it.
constexpr size_t kUnit = size_t{2} << 20; // bytes
constexpr size_t kTightPart = 64; // of the limit, see Gather
constexpr int kAttempts = 4; // to take memory as one segment
constexpr int kMostLost = 2; // times that the one is lost to small storages

} // namespace

size_t Device::room_for_small() {
  Lock lock(*this);
  return room_for_small_ > 0 ? std::min(room_for_small_, limit_) : limit_;
}

// The stream whose segments are to become one, none if they shall stay.
std::optional<cudaStream_t> Device::stream_to_consolidate() {
  Lock lock(*this);
  if (!traits_.joins_memory || Allocator::get().routes_to_pools()) {
    return std::nullopt;
  }
  if (!is_consolidation_due_.exchange(false) || is_consolidated_) {
    return std::nullopt;
  }
  std::optional<uintptr_t> stream;
  for (const auto& [address, segment] : layout_.segments()) {
    if (segment.is_private || segment.is_expandable ||
        stream.value_or(segment.stream) != segment.stream) {
      return std::nullopt;
    }
    stream = segment.stream;
  }
  if (!stream || !can_split_all_blocks()) {
    return std::nullopt;
  }
  is_consolidated_ = true;
  has_evicted_ = false;
  return reinterpret_cast<cudaStream_t>(*stream);
}

void Device::take_one_segment(cudaStream_t stream) {
  size_t small = 0;
  {
    Lock lock(*this);
    for (const auto& [address, segment] : layout_.segments()) {
      small += segment.size <= kUnit ? segment.size : 0;
    }
  }
  shrink({}, Scope::kAll);
  // Somebody else may take memory meanwhile.
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const size_t bytes = size_of_one_segment(small);
    if (bytes <= growth_for(1 + kSmallSize)) {
      return;
    }
    look_at_card_before_growth(bytes);
    if (!enforce_limit()) {
      Allocator::get().take_segment(index_, bytes, stream);
    }
    if (!enforce_limit()) {
      note_one_segment(bytes, small);
      return;
    }
  }
  Lock lock(*this);
  is_consolidated_ = true; // it was tried: the memory comes piece by piece
}

// Bytes, all that the limit has room for but for what is left for small ones.
size_t Device::size_of_one_segment(size_t small) {
  Lock lock(*this);
  is_consolidated_ = true;
  room_for_small_ = rest_for_small(limit_, small);
  const size_t kept = layout_.reserved() + room_for_small_;
  return (limit_ - std::min(limit_, kept)) / kUnit * kUnit;
}

void Device::note_one_segment(size_t bytes, size_t small) {
  Lock lock(*this);
  peak_unmanaged_ = layout_.allocated() - page_bytes_;
  // Large pages cannot lie in what is left for small ones.
  policy_->set_capacity(std::min(limit_, bytes + layout_.allocated() + small));
  for (const auto& [address, segment] : layout_.segments()) {
    one_segment_ = segment.size == bytes ? address : one_segment_;
  }
}

// A segment goes back to the driver, for instance because the program empties
// the cache or the limit sank. If it was the one, there may be another.
void Device::note_lost_segment(uintptr_t address) {
  if (address != one_segment_) {
    return;
  }
  forget_one_segment();
  if (CurrentRequest::get()) {
    is_consolidated_ = ++lost_to_requests_ >= kMostLost;
  }
}

void Device::gather(cudaStream_t stream, Gather how) {
  if (is_capturing() || Allocator::get().routes_to_pools()) {
    return;
  }
  if (has_expandable_segments() || !can_split_all_blocks()) {
    shrink({}, Scope::kAll); // these do not need to be taken as one
  } else if (how == Gather::kRoomy) {
    take_one_segment(stream);
  } else {
    take_tight_segment(stream);
  }
}

bool Device::has_expandable_segments() {
  Lock lock(*this);
  const auto& segments = layout_.segments();
  return std::any_of(segments.begin(), segments.end(), [](const auto& entry) {
    return entry.second.is_expandable;
  });
}

// For one operator: it does not count as the one segment, so that all of the
// memory is taken anew when it next runs short.
void Device::take_tight_segment(cudaStream_t stream) {
  shrink({}, Scope::kAll);
  size_t bytes = 0;
  {
    Lock lock(*this);
    const size_t small = std::max(kUnit, limit_ / kTightPart / kUnit * kUnit);
    const size_t kept = layout_.reserved() + small;
    bytes = (limit_ - std::min(limit_, kept)) / kUnit * kUnit;
  }
  if (bytes > 0) {
    Allocator::get().take_segment(index_, bytes, stream);
  }
}

// When memory runs short again, all of it is taken anew.
void Device::forget_one_segment() {
  one_segment_ = 0;
  room_for_small_ = 0;
  is_consolidated_ = has_evicted_ = is_consolidation_due_ = false;
  policy_->set_capacity(limit_);
}

// See Note [One segment]. Called between operators.
void Device::consolidate(cudaStream_t stream) noexcept {
  try {
    take_one_segment(stream);
  } catch (const std::exception& error) {
    TORCH_WARN_ONCE("LMS could not take memory as one segment: ", error.what());
  }
}

} // namespace at::cuda::lms
