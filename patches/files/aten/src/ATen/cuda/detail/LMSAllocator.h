#pragma once

#include <ATen/cuda/detail/LMSCompat.h>
#include <ATen/cuda/detail/LMSAllocatorErrors.h>
#include <ATen/cuda/detail/LMSCoreHandover.h>
#include <ATen/cuda/detail/LMSCoreStats.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace at::cuda::lms {

using c10::cuda::CUDACachingAllocator::CUDAAllocator;

using AllocatorStats = c10::CachingDeviceAllocator::DeviceStats;

class Device;

// The layer that LMS puts on the native caching allocator while it is enabled:
// it forwards everything, and where an allocation does not fit in the limit it
// has storages paged out and tries again.
//
// Room is made before the native allocator is asked. Where it finds none all
// the same, more is made from inside its malloc, through its
// FreeMemoryCallback: after its free lists have failed and before it grows.
class Allocator final : public AllocatorForwarder {
 public:
  static Allocator& get();

  // Makes this the process's CUDA allocator, or undoes that. Throws c10::Error
  // if the present one is not the native caching allocator.
  void install();
  void uninstall();

  CUDAAllocator& native() const {
    return *native_;
  }

  // Device memory from the blocks of the stream, or of another one if they have
  // no room, for a copy into it that shall wait for `pending`. Throws
  // c10::OutOfMemoryError; but if `is_ahead` it returns null, at once.
  void* allocate_for_copy(
      c10::DeviceIndex device,
      size_t bytes,
      cudaStream_t stream,
      bool is_ahead,
      Events& pending);

  c10::DataPtr allocate(size_t bytes) override;
  void* raw_alloc(size_t bytes) override;
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override;
  // Takes memory from the driver as one cached segment for the stream; does
  // nothing if there is not as much. It does not show in peak statistics.
  void take_segment(c10::DeviceIndex device, size_t bytes, cudaStream_t stream);

  // With LMS on: what could be had by evicting storages.
  void cacheInfo(c10::DeviceIndex device, size_t* largest_block) override;
  void emptyCache(MempoolId_t pool) override;
  AllocatorStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  void attachOutOfMemoryObserver(OutOfMemoryObserver observer) override;
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override;
  double getMemoryFraction(c10::DeviceIndex device) override;
  void recordStream(const c10::DataPtr& ptr, c10::cuda::CUDAStream stream)
      override;
  void beginAllocateToPool(
      c10::DeviceIndex device,
      MempoolId_t pool,
      std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(c10::DeviceIndex device, MempoolId_t pool) override;

  // Takes a stream, whose memory it is to be.
  using Allocate = std::function<void*(cudaStream_t)>;

  // What is asked of the native allocator.
  struct Allocation {
    Device& device;
    size_t bytes;
    cudaStream_t stream; // in the end, the one whose memory it is
    bool is_for_page; // see CurrentRequest
    const Allocate& allocate;
  };

  // True while the native allocator is behind this layer.
  bool is_installed() const {
    return c10::cuda::CUDACachingAllocator::get() == this;
  }
  // True while some allocations go to private pools, as in graph captures. What
  // began before the layer was installed is not known to it.
  bool routes_to_pools() const {
    return routes_to_pools_.load(std::memory_order_relaxed);
  }

 private:
  Allocator();

  void* allocate_for_operator(
      size_t bytes,
      cudaStream_t stream,
      const Allocate& allocate,
      const std::function<void(void*)>& free);
  void* allocate_with_room(Allocation& wanted, Events& pending);
  void* borrow(Allocation& wanted, AllocSource source, Events& pending);
  void* allocate_apart(Allocation& wanted, Events& pending);
  void* try_allocate(
      const Allocation& wanted,
      AllocSource source,
      bool may_reclaim,
      Events& pending);

  std::atomic<bool> routes_to_pools_{false};
  std::mutex pools_mutex_; // no other is taken under it
  std::set<std::pair<c10::DeviceIndex, MempoolId_t>> routed_pools_;
  std::mutex peaks_mutex_; // no other is taken under it
  // Statistics from before the native allocator's peaks were last reset here.
  std::map<c10::DeviceIndex, AllocatorStats> peaks_;
};

// Bytes by which the caching allocator grows to serve a request.
size_t growth_for(size_t bytes);

// The allocation that the calling thread has asked the layer for, so that code
// called from inside the native allocator knows it. Stack of at most one.
struct CurrentRequest {
  c10::DeviceIndex device;
  size_t bytes;
  cudaStream_t stream;
  AllocSource source = AllocSource::kFreeList;
  bool may_reclaim = true; // false: it must do with what is free
  bool is_for_page = false; // a managed storage's bytes come to the memory
  Events pending; // see Note [Handing memory over]

  CurrentRequest(c10::DeviceIndex device, size_t bytes, cudaStream_t stream);
  CurrentRequest(const CurrentRequest&) = delete;
  CurrentRequest& operator=(const CurrentRequest&) = delete;
  ~CurrentRequest();

  // Null if the allocation did not come through the layer.
  static CurrentRequest* get();
  // The native allocator took memory from the driver.
  static void note_growth();
};

} // namespace at::cuda::lms
