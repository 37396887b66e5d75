#include <ATen/cuda/detail/LMSAllocator.h>

#include <ATen/cuda/detail/LMSOperatorAttempt.h>
#include <ATen/cuda/detail/LMSCudaCaptures.h>
#include <ATen/cuda/detail/LMSOperatorCollectives.h>
#include <ATen/cuda/detail/LMSDevice.h>
#include <ATen/cuda/detail/LMSDeviceReport.h>
#include <ATen/cuda/detail/LMSOperatorWorkspace.h>
#include <ATen/cuda/detail/LMSSettings.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace at::cuda::lms {
namespace {

// The caching allocator's growth steps, bytes: kSmallBuffer, kMinLargeAlloc and
// kRoundLarge of its AllocatorConfig.h.
constexpr size_t kSmallBuffer = size_t{2} << 20;
constexpr size_t kMinLargeAlloc = size_t{10} << 20;
constexpr size_t kRoundLarge = size_t{2} << 20;

thread_local CurrentRequest* current_request = nullptr;

// Makes room for a request that finds none. Returns how, or kFreeList if there
// is nothing to reclaim.
AllocSource reclaim_for(
    Device& device,
    size_t bytes,
    cudaStream_t stream,
    bool may_wait) {
  const auto working = device.sharing().working();
  Request wanted{block_size_for(bytes), reinterpret_cast<uintptr_t>(stream)};
  wanted.is_joined = may_wait; // by make_room
  if (const size_t count =
          device.room().reclaim(wanted, Scope::kWindow, may_wait).count) {
    return count == 1 ? AllocSource::kReclaimOne
                      : AllocSource::kReclaimFragments;
  }
  // No window: free whole segments, which the allocator then gives back to the
  // driver so that it can grow.
  const auto segments = device.room().reclaim(
      {growth_for(bytes), wanted.stream}, Scope::kSegments, may_wait);
  return segments.count > 0 ? AllocSource::kReclaimFragments
                            : AllocSource::kFreeList;
}

// As the policy chooses, twice at most: what is free in pieces may not have let
// itself be joined. Returns how.
AllocSource make_room(Allocator::Allocation& wanted) {
  Device& device = wanted.device;
  device.room().free_memory_in_doubt();
  const bool is_free = !is_capturing(); // else it is from the graph's own pool
  if (is_free) {
    wanted.stream = device.loans().lender_for(wanted.bytes, wanted.stream);
  }
  const Request request{
      block_size_for(wanted.bytes), reinterpret_cast<uintptr_t>(wanted.stream)};
  AllocSource source = AllocSource::kFreeList;
  device.room().make_gap(request);
  for (int left = 2; left > 0 && is_free && device.room().is_needed(request);
       --left) {
    source =
        reclaim_for(device, wanted.bytes, wanted.stream, /*may_wait=*/true);
    device.room().make_gap(request);
  }
  return source;
}

// What an allocation does that has found no room all the same.
class MoreRoom {
 public:
  MoreRoom(Device& device, const Allocator::Allocation& wanted)
      : device_(device),
        growth_{
            growth_for(wanted.bytes),
            reinterpret_cast<uintptr_t>(wanted.stream)},
        generation_(contention().generation()) {}

  // Evicts whole segments, the next time everything. False if there is nothing
  // more to evict; `source` says what was done.
  bool reclaim(AllocSource& source) {
    const auto working = device_.sharing().working();
    while (next_ != kSteps.end()) {
      const auto got =
          device_.room().reclaim(growth_, next_->first, /*may_wait=*/true);
      freed_ += got.bytes;
      source = next_->second;
      ++next_;
      if (got.count > 0) {
        return true;
      }
    }
    return false;
  }

  // Once: if it rises and others then do not give, it sinks again.
  bool raise_limit() {
    return !std::exchange(has_raised_limit_, true) &&
        device_.limit().rise(growth_.bytes);
  }

  // As long as others give back what they use there is something to reclaim.
  // Once it was all of the device, more of it will not help.
  bool wait_for_others() {
    if (freed_ > device_.limit().bytes() ||
        !device_.room().wait_for_others(generation_, give_up_)) {
      return false;
    }
    next_ = kSteps.begin();
    generation_ = contention().generation();
    return true;
  }

 private:
  static constexpr std::array<std::pair<Scope, AllocSource>, 2> kSteps{
      {{Scope::kSegments, AllocSource::kCudaMallocRetry},
       {Scope::kAll, AllocSource::kReclaimAll}}};

  const Contention& contention() const {
    return device_.pager().books.contention;
  }

  Device& device_;
  const Request growth_;
  decltype(kSteps)::const_iterator next_ = kSteps.begin();
  uint64_t generation_;
  Contention::GiveUp give_up_;
  size_t freed_ = 0; // bytes, for this request
  bool has_raised_limit_ = false;
};

constexpr auto kNoRoomInCapture =
    "\nA CUDA graph capture has memory of its own, for which Large Model Support "
    "can page nothing out once it has begun. Room is made before that, but "
    "pinned storages stay, and so does the segment that they lie in: capture "
    "before memory is short.";

[[noreturn]] void fail(const std::string& error) {
  give_up_request();
  TORCH_CHECK_WITH(OutOfMemoryError, false, error);
}

// Whether kernels are not to catch that there is no memory of so many bytes.
bool is_uncaught(Device& device, size_t bytes) {
  const Uncaught shortages = uncaught_shortages();
  return shortages == Uncaught::kAll ||
      (shortages == Uncaught::kInPieces && device.room().has_free(bytes));
}

// Runs inside the native allocator's malloc, its mutex held, when no cached
// block fits: what was free before has been taken by another thread, or
// Room::is_needed has seen a gap that the allocator does not use. Returns true
// if it is worth looking again.
class ReclaimCallback final : public c10::FreeMemoryCallback {
 public:
  bool Execute() override {
    CurrentRequest* request = CurrentRequest::get();
    if (!request || !request->may_reclaim || !Settings::get().active()) {
      return false;
    }
    Device* device = Device::find(request->device);
    // With history on, a free records Python frames and so takes the GIL,
    // which must not happen under the allocator's mutex: the request then
    // fails and is retried outside.
    if (!device || !device->room().must_reclaim(request->bytes) ||
        Allocator::get().native().isHistoryEnabled()) {
      return false;
    }
    const auto source = reclaim_for(
        *device, request->bytes, request->stream, /*may_wait=*/false);
    request->source = std::max(request->source, source);
    return source != AllocSource::kFreeList;
  }
};

REGISTER_FREE_MEMORY_CALLBACK("lms_reclaim", ReclaimCallback)

void raise_peaks(AllocatorStats& stats, const AllocatorStats& before) {
  using Counts = c10::CachingDeviceAllocator::StatArray;
  for (Counts AllocatorStats::*member :
       {&AllocatorStats::allocation,
        &AllocatorStats::segment,
        &AllocatorStats::active,
        &AllocatorStats::inactive_split,
        &AllocatorStats::allocated_bytes,
        &AllocatorStats::reserved_bytes,
        &AllocatorStats::active_bytes,
        &AllocatorStats::inactive_split_bytes,
        &AllocatorStats::requested_bytes}) {
    for (size_t i = 0; i < (stats.*member).size(); ++i) {
      auto& peak = (stats.*member)[i].peak;
      peak = std::max(peak, (before.*member)[i].peak);
    }
  }
}

} // namespace

size_t growth_for(size_t bytes) {
  if (bytes <= kSmallSize) {
    return kSmallBuffer;
  }
  if (bytes < kMinLargeAlloc) {
    return large_segment_size<AllocatorConfig>(0);
  }
  return round_up(bytes, kRoundLarge);
}

CurrentRequest::CurrentRequest(
    c10::DeviceIndex device,
    size_t bytes,
    cudaStream_t stream)
    : device(device), bytes(bytes), stream(stream) {
  current_request = this;
}

CurrentRequest::~CurrentRequest() {
  current_request = nullptr;
}

CurrentRequest* CurrentRequest::get() {
  return current_request;
}

void CurrentRequest::note_growth() {
  if (current_request && current_request->source == AllocSource::kFreeList) {
    current_request->source = AllocSource::kCudaMalloc;
  }
}

Allocator::Allocator()
    : AllocatorForwarder(c10::cuda::CUDACachingAllocator::get()) {}

Allocator& Allocator::get() {
  static auto* layer = new Allocator(); // leaked: storages refer to it
  return *layer;
}

void Allocator::install() {
  auto* current = c10::cuda::CUDACachingAllocator::get();
  if (current == this) {
    return;
  }
  TORCH_CHECK(
      current == native_ && current->name() == "native",
      "Large Model Support works on PyTorch's native CUDA caching allocator, "
      "but this process uses '",
      current->name(),
      "'. Remove backend:cudaMallocAsync from PYTORCH_ALLOC_CONF and do not "
      "call torch.cuda.memory.change_current_allocator.");
  c10::cuda::CUDACachingAllocator::allocator.store(this);
  c10::SetAllocator(c10::DeviceType::CUDA, this);
}

void Allocator::uninstall() {
  c10::cuda::CUDACachingAllocator::allocator.store(native_);
  c10::SetAllocator(c10::DeviceType::CUDA, native_);
  const std::lock_guard<std::mutex> lock(pools_mutex_);
  routed_pools_.clear(); // the layer is not told of their end
  routes_to_pools_ = false;
}

// One call of the native allocator. Throws c10::OutOfMemoryError.
void* Allocator::try_allocate(
    const Allocation& wanted,
    AllocSource source,
    bool may_reclaim,
    Events& pending) {
  Device& device = wanted.device;
  const RetryScope retried;
  CurrentRequest request(device.index(), wanted.bytes, wanted.stream);
  request.is_for_page = wanted.is_for_page;
  request.may_reclaim = may_reclaim;
  void* ptr = wanted.allocate(wanted.stream);
  device.room().count(std::max(source, request.source));
  pending = std::move(request.pending);
  return ptr;
}

// Makes more and more room until the allocation succeeds: first as the policy
// chooses, then by whole segments, then by everything evictable, then in other
// streams' memory, then by what other threads give back. The limit is what it
// was until all of the device has been tried.
void* Allocator::allocate_with_room(Allocation& wanted, Events& pending) {
  Device& device = wanted.device;
  AllocSource source = make_room(wanted);
  MoreRoom more(device, wanted);
  while (true) {
    std::string error;
    try {
      return try_allocate(wanted, source, /*may_reclaim=*/true, pending);
    } catch (const c10::OutOfMemoryError& failure) {
      error = failure.what_without_backtrace();
    }
    if (is_capturing()) {
      fail(error + kNoRoomInCapture);
    }
    // What the driver refused, reclaiming may yet give.
    if (device.limit().recover() || more.reclaim(source) ||
        more.raise_limit()) {
      continue;
    }
    if (void* lent = borrow(wanted, source, pending)) {
      return lent;
    }
    if (!more.wait_for_others()) {
      error += "\n" + describe_memory(device);
      if (!wanted.is_for_page && is_uncaught(device, wanted.bytes)) {
        throw Uncatchable(error);
      }
      fail(error);
    }
  }
}

// See Note [Lending memory to other streams]. Null if none has enough.
void* Allocator::borrow(
    Allocation& wanted,
    AllocSource source,
    Events& pending) {
  cudaStream_t own = wanted.stream;
  for (cudaStream_t lender : wanted.device.loans().other_streams(own)) {
    wanted.stream = lender;
    try {
      return try_allocate(wanted, source, /*may_reclaim=*/true, pending);
    } catch (const c10::OutOfMemoryError&) { // NOLINT(bugprone-empty-catch)
      // The next one may have room.
    }
  }
  wanted.stream = own;
  return nullptr;
}

// In segments of nothing else, since it stays. Null if there is no room for one
// beside what there is, or it will lie among small ones.
void* Allocator::allocate_apart(Allocation& wanted, Events& pending) {
  if (wanted.bytes <= kSmallSize || is_capturing() || routes_to_pools()) {
    return nullptr;
  }
  cudaStream_t own = wanted.stream;
  wanted.stream = wanted.device.loans().stream_apart();
  const Request request{
      block_size_for(wanted.bytes), reinterpret_cast<uintptr_t>(wanted.stream)};
  if (wanted.device.room().is_there_beside(request)) {
    try {
      return try_allocate(
          wanted, AllocSource::kFreeList, /*may_reclaim=*/false, pending);
    } catch (const c10::OutOfMemoryError&) { // NOLINT(bugprone-empty-catch)
      // It can be had otherwise.
    }
  }
  wanted.stream = own;
  return nullptr;
}

// Memory that work on the stream may use.
void* Allocator::allocate_for_operator(
    size_t bytes,
    cudaStream_t stream,
    const Allocate& allocate,
    const std::function<void(void*)>& free) {
  if (bytes == 0 || !Settings::get().active()) {
    return allocate(stream);
  }
  Device& device = Device::get(c10::cuda::current_device());
  Allocation wanted{device, bytes, stream, /*is_for_page=*/false, allocate};
  Events pending;
  void* ptr =
      is_preparing_workspace() ? allocate_apart(wanted, pending) : nullptr;
  if (!ptr) {
    ptr = allocate_with_room(wanted, pending);
  }
  try {
    if (wanted.stream != stream) {
      device.loans().lend(ptr, wanted.stream, stream, pending);
    }
    device.room().wait_for_memory(stream, pending);
  } catch (...) {
    device.pager().books.return_pending(ptr, pending);
    free(ptr);
    throw;
  }
  note_step();
  return ptr;
}

void* Allocator::allocate_for_copy(
    c10::DeviceIndex index,
    size_t bytes,
    cudaStream_t stream,
    bool is_ahead,
    Events& pending) {
  c10::cuda::CUDAGuard guard(index);
  const Allocate allocate = [&](cudaStream_t source) {
    return native_->raw_alloc_with_stream(bytes, source);
  };
  Allocation wanted{
      Device::get(index), bytes, stream, /*is_for_page=*/true, allocate};
  if (!is_ahead) {
    return allocate_with_room(wanted, pending);
  }
  if (!wanted.device.room().is_there_ahead(
          {block_size_for(bytes), reinterpret_cast<uintptr_t>(stream)})) {
    return nullptr;
  }
  try {
    return try_allocate(
        wanted, AllocSource::kFreeList, /*may_reclaim=*/false, pending);
  } catch (const c10::OutOfMemoryError&) {
    return nullptr;
  }
}

c10::DataPtr Allocator::allocate(size_t bytes) {
  cudaStream_t stream = c10::cuda::getCurrentCUDAStream().stream();
  c10::DataPtr result;
  allocate_for_operator(
      bytes,
      stream,
      [&](cudaStream_t source) {
        if (source == stream) {
          result = native_->allocate(bytes);
        } else {
          void* lent = native_->raw_alloc_with_stream(bytes, source);
          const c10::Device device(
              c10::DeviceType::CUDA, c10::cuda::current_device());
          result = {lent, lent, raw_deleter(), device};
        }
        return result.get();
      },
      [](void*) {}); // the result does
  return result;
}

void* Allocator::raw_alloc(size_t bytes) {
  return raw_alloc_with_stream(
      bytes, c10::cuda::getCurrentCUDAStream().stream());
}

void* Allocator::raw_alloc_with_stream(size_t bytes, cudaStream_t stream) {
  return allocate_for_operator(
      bytes,
      stream,
      [&](cudaStream_t source) {
        return native_->raw_alloc_with_stream(bytes, source);
      },
      [&](void* ptr) { native_->raw_delete(ptr); });
}

void Allocator::take_segment(
    c10::DeviceIndex index,
    size_t bytes,
    cudaStream_t stream) {
  const AllocatorStats before = getDeviceStats(index);
  c10::cuda::CUDAGuard guard(index);
  try {
    const RetryScope optional;
    native_->raw_delete(native_->raw_alloc_with_stream(bytes, stream));
  } catch (const c10::OutOfMemoryError&) {
    return; // the memory comes piece by piece then
  }
  native_->resetPeakStats(index);
  std::lock_guard<std::mutex> lock(peaks_mutex_);
  peaks_[index] = before;
}

AllocatorStats Allocator::getDeviceStats(c10::DeviceIndex index) {
  AllocatorStats stats = native_->getDeviceStats(index);
  std::lock_guard<std::mutex> lock(peaks_mutex_);
  if (const auto before = peaks_.find(index); before != peaks_.end()) {
    raise_peaks(stats, before->second);
  }
  stats.num_ooms -= uncounted_errors(index);
  return stats;
}

void Allocator::resetAccumulatedStats(c10::DeviceIndex index) {
  native_->resetAccumulatedStats(index);
  forget_uncounted_errors(index);
}

void Allocator::resetPeakStats(c10::DeviceIndex index) {
  native_->resetPeakStats(index);
  std::lock_guard<std::mutex> lock(peaks_mutex_);
  peaks_.erase(index);
}

// cuDNN's benchmark mode leaves out algorithms that need a larger workspace,
// and keeps the choice. So the answer must not depend on what is resident, or
// bits would.
void Allocator::cacheInfo(c10::DeviceIndex index, size_t* largest_block) {
  if (!Settings::get().active()) {
    native_->cacheInfo(index, largest_block);
    return;
  }
  const size_t room = Device::get(index).limit().room_for_one();
  *largest_block = std::max(*largest_block, room);
}

void Allocator::emptyCache(MempoolId_t pool) {
  release_completed_collectives();
  for (Device* device : Device::all()) {
    device->room().settle();
  }
  AllocatorForwarder::emptyCache(pool);
}

void Allocator::attachOutOfMemoryObserver(OutOfMemoryObserver observer) {
  add_observer(*native_, std::move(observer));
}

void Allocator::beginAllocateToPool(
    c10::DeviceIndex device,
    MempoolId_t pool,
    std::function<bool(cudaStream_t)> filter) {
  if (Settings::get().active() && !routes_to_pools()) {
    Device::get(device).room().make_for_pool();
  }
  // A storage that pages in is not the pool's. The pool could be gone before
  // it.
  const auto is_for_pool = [filter = std::move(filter)](cudaStream_t stream) {
    const CurrentRequest* request = CurrentRequest::get();
    return !(request && request->is_for_page) && filter(stream);
  };
  native_->beginAllocateToPool(device, pool, is_for_pool);
  const std::lock_guard<std::mutex> lock(pools_mutex_);
  routed_pools_.emplace(device, pool);
  routes_to_pools_ = true;
}

void Allocator::endAllocateToPool(c10::DeviceIndex device, MempoolId_t pool) {
  native_->endAllocateToPool(device, pool);
  const std::lock_guard<std::mutex> lock(pools_mutex_);
  routed_pools_.erase({device, pool});
  routes_to_pools_ = !routed_pools_.empty();
}

void Allocator::setMemoryFraction(double fraction, c10::DeviceIndex index) {
  native_->setMemoryFraction(fraction, index); // checks the value
  Device::get(index).limit().set_user_fraction(fraction);
}

double Allocator::getMemoryFraction(c10::DeviceIndex index) {
  return Device::get(index).limit().user_fraction();
}

void Allocator::recordStream(
    const c10::DataPtr& ptr,
    c10::cuda::CUDAStream stream) {
  if (ManagedStorage* record = managed(ptr)) {
    record->device.record_stream(record, stream);
  } else {
    native_->recordStream(ptr, stream);
  }
}

} // namespace at::cuda::lms
