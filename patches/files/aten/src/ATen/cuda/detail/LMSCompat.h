#pragma once

// Everything of the engine that differs between PyTorch releases.
//
// The allocator's interface grows with each release. A function that becomes
// pure virtual stops the compiler; one with a default body would be lost in
// silence, so `lms verify` checks that each has a forwarding function here.

#include <ATen/cuda/detail/LMSCoreLayout.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/api/include/torch/version.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#define LMS_TORCH_AT_LEAST(minor) \
  (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= (minor))

#if LMS_TORCH_AT_LEAST(9)
#include <c10/core/AllocatorConfig.h>
#else
#include <c10/cuda/CUDAAllocatorConfig.h>
#endif

// Of ATen/cuda/CUDAContextLight.h, which wants headers of more libraries.
struct cublasContext;

namespace at::cuda {
#if LMS_TORCH_AT_LEAST(12)
TORCH_CUDA_CPP_API cublasContext* getCurrentCUDABlasHandle(bool setup);
#else
TORCH_CUDA_CPP_API cublasContext* getCurrentCUDABlasHandle();
#endif
#if LMS_TORCH_AT_LEAST(9)
TORCH_CUDA_CPP_API void* getCUDABlasLtWorkspace();
#endif
#if LMS_TORCH_AT_LEAST(15)
TORCH_CUDA_CPP_API bool isCUDABlasWorkspaceCachingEnabled();
#endif
} // namespace at::cuda

namespace at::cuda::lms {

// Whether workspaces stay. If not, each product takes one for itself.
inline bool keeps_blas_workspaces() {
#if LMS_TORCH_AT_LEAST(15)
  return isCUDABlasWorkspaceCachingEnabled();
#else
  return true;
#endif
}
// The calling thread gets a handle of cuBLAS, and the handle a workspace for
// the current stream, unless they are there. Throws c10::Error.
inline void make_blas_workspace() {
#if LMS_TORCH_AT_LEAST(12)
  (void)getCurrentCUDABlasHandle(/*setup=*/true);
#else
  (void)getCurrentCUDABlasHandle();
#endif
}
// The same for cuBLASLt, whose workspaces lasted for one product before.
inline void make_blas_lt_workspace() {
#if LMS_TORCH_AT_LEAST(9)
  (void)getCUDABlasLtWorkspace();
#endif
}

using c10::cuda::MempoolId_t;
using c10::cuda::CUDACachingAllocator::SegmentInfo;
using c10::cuda::CUDACachingAllocator::TraceEntry;

#if LMS_TORCH_AT_LEAST(9)
using AllocatorConfig = c10::CachingAllocator::AcceleratorAllocatorConfig;
#else
using AllocatorConfig = c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig;
#endif

// False if large cached blocks are only used whole (max_split_size_mb).
inline bool can_split_all_blocks() {
  return AllocatorConfig::max_split_size() ==
      std::numeric_limits<size_t>::max();
}

// Bytes of the segments that requests of medium size are served from.
template <class Config>
auto large_segment_size(int /*preferred*/) -> decltype(size_t{
                                               Config::large_segment_size()}) {
  return Config::large_segment_size();
}
template <class Config>
size_t large_segment_size(long /*where it cannot be chosen*/) {
  return size_t{20} << 20;
}

// Bytes of the block that serves a request, where one can be split: by default
// the next multiple of kMinBlockSize, else that of a part of the power of two
// below (the caching allocator's round_size).
inline size_t block_size_for(size_t bytes) {
  const size_t divisions = AllocatorConfig::roundup_power2_divisions(bytes);
  if (divisions <= 1 || bytes <= kMinBlockSize * divisions) {
    return round_up(std::max(bytes, kMinBlockSize), kMinBlockSize);
  }
  size_t power = kMinBlockSize;
  while (power <= bytes / 2) {
    power *= 2;
  }
  return round_up(bytes, power / divisions);
}

// Gives what is cached back to the driver.
inline void empty_cache(
    c10::cuda::CUDACachingAllocator::CUDAAllocator& native) {
#if LMS_TORCH_AT_LEAST(8)
  native.emptyCache({0, 0});
#else
  native.emptyCache();
#endif
}

// Limits the native allocator to a share of a device. Some releases leave that
// device the current one.
inline void set_memory_fraction(
    c10::cuda::CUDACachingAllocator::CUDAAllocator& native,
    double fraction,
    c10::DeviceIndex device) {
  const c10::cuda::CUDAGuard guard(device);
  native.setMemoryFraction(fraction, device);
}

// The segments and blocks of the native allocator.
inline c10::cuda::CUDACachingAllocator::SnapshotInfo snapshot_of(
    c10::cuda::CUDACachingAllocator::CUDAAllocator& native) {
#if LMS_TORCH_AT_LEAST(11)
  return native.snapshot({0, 0}, /*include_traces=*/false);
#else
  return native.snapshot();
#endif
}

// Whether the segment that an entry tells of is of a private pool. Before 2.8
// entries do not say: all are while some allocations go to such pools.
inline bool is_private(const TraceEntry& entry, bool routes_to_pools) {
#if LMS_TORCH_AT_LEAST(8)
  static_cast<void>(routes_to_pools);
  return entry.mempool_ != MempoolId_t{0, 0};
#else
  static_cast<void>(entry);
  return routes_to_pools;
#endif
}

// Forwards the whole CUDAAllocator interface to the native allocator.
class AllocatorForwarder
    : public c10::cuda::CUDACachingAllocator::CUDAAllocator {
 public:
  explicit AllocatorForwarder(
      c10::cuda::CUDACachingAllocator::CUDAAllocator* native)
      : native_(native) {}

  // c10::Allocator
  c10::DataPtr allocate(size_t bytes) override {
    return native_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return native_->raw_deleter();
  }
  bool is_simple_data_ptr(const c10::DataPtr& data_ptr) const override {
    return native_->is_simple_data_ptr(data_ptr);
  }
  void copy_data(void* dest, const void* src, size_t count) const override {
    native_->copy_data(dest, src, count);
  }

  // c10::DeviceAllocator, since 2.9
  bool initialized() override {
    return native_->initialized();
  }
#if LMS_TORCH_AT_LEAST(8)
  void emptyCache(MempoolId_t pool) override {
    native_->emptyCache(pool);
  }
#else
  void emptyCache() final {
    emptyCache(MempoolId_t{0, 0});
  }
  virtual void emptyCache(MempoolId_t /*all*/) {
    empty_cache(*native_);
  }
#endif
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(
      c10::DeviceIndex device) override {
    return native_->getDeviceStats(device);
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    native_->resetAccumulatedStats(device);
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    native_->resetPeakStats(device);
  }
#if LMS_TORCH_AT_LEAST(10)
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return native_->getMemoryInfo(device);
  }
#endif
#if LMS_TORCH_AT_LEAST(13)
  c10::DataPtr allocateWithAddress(size_t bytes, void* address) override {
    return native_->allocateWithAddress(bytes, address);
  }
#endif

  // c10::cuda::CUDACachingAllocator::CUDAAllocator
  void* raw_alloc(size_t bytes) override {
    return native_->raw_alloc(bytes);
  }
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override {
    return native_->raw_alloc_with_stream(bytes, stream);
  }
  void raw_delete(void* ptr) override {
    native_->raw_delete(ptr);
  }
  void init(int device_count) override {
    native_->init(device_count);
  }
  double getMemoryFraction(c10::DeviceIndex device) override {
    return native_->getMemoryFraction(device);
  }
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override {
    native_->setMemoryFraction(fraction, device);
  }
#if LMS_TORCH_AT_LEAST(10)
  std::vector<c10::cuda::CUDACachingAllocator::StreamSegmentSize>
  getExpandableSegmentSizes(c10::DeviceIndex device) override {
    return native_->getExpandableSegmentSizes(device);
  }
#endif
  void enable(bool value) override {
    native_->enable(value);
  }
  bool isEnabled() const override {
    return native_->isEnabled();
  }
  void cacheInfo(c10::DeviceIndex device, size_t* largest_block) override {
    native_->cacheInfo(device, largest_block);
  }
  void* getBaseAllocation(void* ptr, size_t* size) override {
    return native_->getBaseAllocation(ptr, size);
  }
  using CUDAAllocator::recordStream;
  void recordStream(const c10::DataPtr& ptr, c10::cuda::CUDAStream stream)
      override {
    native_->recordStream(ptr, stream);
  }
#if LMS_TORCH_AT_LEAST(11)
  c10::cuda::CUDACachingAllocator::SnapshotInfo snapshot(
      MempoolId_t pool,
      bool include_traces) override {
    return native_->snapshot(pool, include_traces);
  }
#elif LMS_TORCH_AT_LEAST(8)
  c10::cuda::CUDACachingAllocator::SnapshotInfo snapshot(
      MempoolId_t pool) override {
    return native_->snapshot(pool);
  }
#else
  c10::cuda::CUDACachingAllocator::SnapshotInfo snapshot() override {
    return native_->snapshot();
  }
#endif
  void beginAllocateToPool(
      c10::DeviceIndex device,
      MempoolId_t pool,
      std::function<bool(cudaStream_t)> filter) override {
    native_->beginAllocateToPool(device, pool, std::move(filter));
  }
  void endAllocateToPool(c10::DeviceIndex device, MempoolId_t pool) override {
    native_->endAllocateToPool(device, pool);
  }
  void releasePool(c10::DeviceIndex device, MempoolId_t pool) override {
    native_->releasePool(device, pool);
  }
  int getPoolUseCount(c10::DeviceIndex device, MempoolId_t pool) override {
    return native_->getPoolUseCount(device, pool);
  }
#if LMS_TORCH_AT_LEAST(11)
  void createOrIncrefPool(
      c10::DeviceIndex device,
      MempoolId_t pool,
      std::shared_ptr<CUDAAllocator> allocator) override {
    native_->createOrIncrefPool(device, pool, std::move(allocator));
  }
  void setUseOnOOM(c10::DeviceIndex device, MempoolId_t pool, bool use_on_oom)
      override {
    native_->setUseOnOOM(device, pool, use_on_oom);
  }
#elif LMS_TORCH_AT_LEAST(8)
  void createOrIncrefPool(
      c10::DeviceIndex device,
      MempoolId_t pool,
      CUDAAllocator* allocator) override {
    native_->createOrIncrefPool(device, pool, allocator);
  }
  void setUseOnOOM(c10::DeviceIndex device, MempoolId_t pool) override {
    native_->setUseOnOOM(device, pool);
  }
#else
  void ensureExistsAndIncrefPool(c10::DeviceIndex device, MempoolId_t pool)
      override {
    native_->ensureExistsAndIncrefPool(device, pool);
  }
#endif
#if LMS_TORCH_AT_LEAST(10)
  void setNoSplit(c10::DeviceIndex device, MempoolId_t pool) override {
    native_->setNoSplit(device, pool);
  }
#endif
#if LMS_TORCH_AT_LEAST(13)
  void markCaptureBegin(c10::DeviceIndex device) override {
    native_->markCaptureBegin(device);
  }
  void markCaptureEnd(c10::DeviceIndex device) override {
    native_->markCaptureEnd(device);
  }
#endif
  bool checkPoolLiveAllocations(
      c10::DeviceIndex device,
      MempoolId_t pool,
      const std::unordered_set<void*>& expected) override {
    return native_->checkPoolLiveAllocations(device, pool, expected);
  }
  c10::cuda::CUDACachingAllocator::ShareableHandle shareIpcHandle(
      void* ptr) override {
    return native_->shareIpcHandle(ptr);
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    return native_->getIpcDevPtr(std::move(handle));
  }
  bool isHistoryEnabled() override {
    return native_->isHistoryEnabled();
  }
#if LMS_TORCH_AT_LEAST(11)
  void recordHistory(
      bool enabled,
      c10::cuda::CUDACachingAllocator::CreateContextFn context_recorder,
      size_t max_entries,
      c10::cuda::CUDACachingAllocator::RecordContext when,
      bool clear_history,
      const std::vector<std::string>& skip_actions) override {
    native_->recordHistory(
        enabled,
        context_recorder,
        max_entries,
        when,
        clear_history,
        skip_actions);
  }
#elif LMS_TORCH_AT_LEAST(8)
  void recordHistory(
      bool enabled,
      c10::cuda::CUDACachingAllocator::CreateContextFn context_recorder,
      size_t max_entries,
      c10::cuda::CUDACachingAllocator::RecordContext when,
      bool clear_history) override {
    native_->recordHistory(
        enabled, context_recorder, max_entries, when, clear_history);
  }
#else
  void recordHistory(
      bool enabled,
      c10::cuda::CUDACachingAllocator::CreateContextFn context_recorder,
      size_t max_entries,
      c10::cuda::CUDACachingAllocator::RecordContext when) override {
    native_->recordHistory(enabled, context_recorder, max_entries, when);
  }
#endif
  void recordAnnotation(
      const std::vector<std::pair<std::string, std::string>>& md) override {
    native_->recordAnnotation(md);
  }
#if LMS_TORCH_AT_LEAST(8)
  void pushCompileContext(std::string& md) override {
    native_->pushCompileContext(md);
  }
  void popCompileContext() override {
    native_->popCompileContext();
  }
#endif
#if LMS_TORCH_AT_LEAST(10)
  void setUserMetadata(const std::string& metadata) override {
    native_->setUserMetadata(metadata);
  }
  std::string getUserMetadata() override {
    return native_->getUserMetadata();
  }
#endif
#if LMS_TORCH_AT_LEAST(14)
  bool supportsUserMetadata() override {
    return native_->supportsUserMetadata();
  }
  void annotateMemory(const void* ptr, const std::string& metadata) override {
    native_->annotateMemory(ptr, metadata);
  }
#endif
#if LMS_TORCH_AT_LEAST(12)
  std::shared_ptr<c10::GatheredContext> getContextForPointer(
      const void* ptr) override {
    return native_->getContextForPointer(ptr);
  }
  void attachOomRejectionObserver(
      c10::cuda::CUDACachingAllocator::OomRejectionObserver observer) override {
    native_->attachOomRejectionObserver(std::move(observer));
  }
#endif
  void attachOutOfMemoryObserver(
      c10::cuda::CUDACachingAllocator::OutOfMemoryObserver observer) override {
    native_->attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(
      c10::cuda::CUDACachingAllocator::AllocatorTraceTracker tracker) override {
    native_->attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(c10::DeviceIndex dev, c10::DeviceIndex peer) override {
    native_->enablePeerAccess(dev, peer);
  }
  cudaError_t memcpyAsync(
      void* dst,
      int dst_device,
      const void* src,
      int src_device,
      size_t count,
      cudaStream_t stream,
      bool p2p_enabled) override {
    return native_->memcpyAsync(
        dst, dst_device, src, src_device, count, stream, p2p_enabled);
  }
  std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState>
  getCheckpointState(c10::DeviceIndex device, MempoolId_t id) override {
    return native_->getCheckpointState(device, id);
  }
  c10::cuda::CUDACachingAllocator::CheckpointDelta setCheckpointPoolState(
      c10::DeviceIndex device,
      std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState> state)
      override {
    return native_->setCheckpointPoolState(device, std::move(state));
  }
  std::string name() override {
    return native_->name();
  }

 protected:
  c10::cuda::CUDACachingAllocator::CUDAAllocator* const native_;
};

} // namespace at::cuda::lms
