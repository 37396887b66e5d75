#pragma once

#include <ATen/cuda/detail/LMSCorePager.h>
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

namespace at::cuda::lms {

class Device;

// What allocations ask for: room, and what the memory that they get has to wait
// for. Called without the mutex, except where noted.
class Room {
 public:
  explicit Room(Device& device) : device_(device) {}

  // See Reclaimer; does nothing in a graph capture.
  Reclaimed reclaim(const Request& wanted, Scope scope, bool may_wait) noexcept;
  // See Relocator; the same.
  void make_gap(const Request& wanted) noexcept;
  // Whether something has to be reclaimed to serve the request.
  bool is_needed(const Request& request);
  // True if no new segment may be taken to serve the request.
  bool must_reclaim(size_t bytes);
  // Whether there is a gap for the request, or a segment may be taken for what
  // is not needed yet.
  bool is_there_ahead(const Request& request);
  // Whether there is a gap for the request, or a segment may be taken for it
  // beside all that there is, also in the part that is left for small ones.
  bool is_there_beside(const Request& request);
  // Whether so much is free, be it in pieces.
  bool has_free(size_t bytes);
  // See Contention: waits for other threads, and for collectives.
  bool wait_for_others(uint64_t seen, Contention::GiveUp& give_up);
  // Pages out and gives the memory back to the driver.
  void shrink(const Request& wanted, Scope scope);
  // Allocations are about to go to a private pool. While they do, the native
  // allocator gives no cached segment back, so it is done before if there is no
  // room for another one.
  void make_for_pool();
  // Work on the stream is about to use memory that was allocated.
  void wait_for_memory(cudaStream_t stream, const Events& pending);
  // Waits on the host until no copy reads from device memory that LMS gave up,
  // so that the memory can go back to the driver.
  void settle();

  // Work that LMS has not seen may use the memory, on streams that cannot be
  // asked: see Note [External streams]. With the mutex.
  void keep_in_doubt(DeviceMemory memory);
  // Frees it, once the device is idle.
  void free_memory_in_doubt();

  // Counts an allocation that was served so. With or without the mutex.
  void count(AllocSource source);
  using Served = std::
      array<std::atomic<int64_t>, static_cast<size_t>(AllocSource::kCount)>;
  const Served& served() const {
    return served_;
  }

 private:
  Device& device_;
  std::vector<DeviceMemory> in_doubt_; // of dead storages
  std::atomic<bool> is_any_in_doubt_{false};
  Served served_{};
};

} // namespace at::cuda::lms
