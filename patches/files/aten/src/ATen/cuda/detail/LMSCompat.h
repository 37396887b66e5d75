#pragma once

// Everything of LMS that differs between PyTorch releases.

#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace at::cuda::lms {

// False if large cached blocks are only used whole (max_split_size_mb).
inline bool can_split_all_blocks() {
  return c10::CachingAllocator::AcceleratorAllocatorConfig::max_split_size() ==
      std::numeric_limits<size_t>::max();
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

  // c10::DeviceAllocator
  bool initialized() override {
    return native_->initialized();
  }
  void emptyCache(c10::MempoolId_t pool) override {
    native_->emptyCache(pool);
  }
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
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return native_->getMemoryInfo(device);
  }

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
  std::vector<c10::cuda::CUDACachingAllocator::StreamSegmentSize>
  getExpandableSegmentSizes(c10::DeviceIndex device) override {
    return native_->getExpandableSegmentSizes(device);
  }
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
  c10::cuda::CUDACachingAllocator::SnapshotInfo snapshot(
      c10::MempoolId_t pool,
      bool include_traces) override {
    return native_->snapshot(pool, include_traces);
  }
  void beginAllocateToPool(
      c10::DeviceIndex device,
      c10::MempoolId_t pool,
      std::function<bool(cudaStream_t)> filter) override {
    native_->beginAllocateToPool(device, pool, std::move(filter));
  }
  void endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool)
      override {
    native_->endAllocateToPool(device, pool);
  }
  void releasePool(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    native_->releasePool(device, pool);
  }
  int getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    return native_->getPoolUseCount(device, pool);
  }
  void createOrIncrefPool(
      c10::DeviceIndex device,
      c10::MempoolId_t pool,
      std::shared_ptr<CUDAAllocator> allocator) override {
    native_->createOrIncrefPool(device, pool, std::move(allocator));
  }
  void setUseOnOOM(
      c10::DeviceIndex device,
      c10::MempoolId_t pool,
      bool use_on_oom) override {
    native_->setUseOnOOM(device, pool, use_on_oom);
  }
  void setNoSplit(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    native_->setNoSplit(device, pool);
  }
  bool checkPoolLiveAllocations(
      c10::DeviceIndex device,
      c10::MempoolId_t pool,
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
  void recordHistory(
      bool enabled,
      c10::CachingDeviceAllocator::CreateContextFn context_recorder,
      size_t max_entries,
      c10::CachingDeviceAllocator::RecordContext when,
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
  void recordAnnotation(
      const std::vector<std::pair<std::string, std::string>>& md) override {
    native_->recordAnnotation(md);
  }
  void pushCompileContext(std::string& md) override {
    native_->pushCompileContext(md);
  }
  void popCompileContext() override {
    native_->popCompileContext();
  }
  void setUserMetadata(const std::string& metadata) override {
    native_->setUserMetadata(metadata);
  }
  std::string getUserMetadata() override {
    return native_->getUserMetadata();
  }
  void attachOutOfMemoryObserver(
      c10::cuda::CUDACachingAllocator::OutOfMemoryObserver observer) override {
    native_->attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(
      c10::CachingDeviceAllocator::AllocatorTraceTracker tracker) override {
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
  getCheckpointState(c10::DeviceIndex device, c10::MempoolId_t id) override {
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
