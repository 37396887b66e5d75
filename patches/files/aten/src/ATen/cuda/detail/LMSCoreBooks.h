#pragma once

#include <ATen/cuda/detail/LMSCoreContention.h>
#include <ATen/cuda/detail/LMSCoreDiskStore.h>
#include <ATen/cuda/detail/LMSCoreDraining.h>
#include <ATen/cuda/detail/LMSCoreHostStore.h>
#include <ATen/cuda/detail/LMSCoreMemoryMap.h>
#include <ATen/cuda/detail/LMSCorePageTable.h>
#include <ATen/cuda/detail/LMSCoreProgress.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

namespace at::cuda::lms {

// What is known of one device. The parts of the pager work on it together; all
// of it is guarded by the mutex, except where a part says otherwise.
struct Books {
  // To drop a page and make it again takes more than 1 / kShortWait of a copy.
  // Where a request needs more than 1 / kLarge of the memory, what can be
  // dropped is seldom side by side.
  static constexpr size_t kShortWait = 32;
  static constexpr size_t kLarge = 32;

  Books(World& world, DeviceIndex device, std::unique_ptr<Policy> policy)
      : world(world),
        contention(device, mutex),
        pages(stats),
        map(world),
        progress(world),
        draining(world, map),
        host(world, pages),
        disk(world, pages, host, stats),
        policy(std::move(policy)) {}

  World& world;
  std::mutex mutex;
  Contention contention;
  DeviceStats stats;
  PageTable pages;
  MemoryMap map;
  Progress progress;
  DrainingMemory draining;
  HostStore host;
  DiskStore disk;
  const std::unique_ptr<Policy> policy;

  // What the host and the disk have of a resident page is of no use any more.
  void drop_copies(PageEntry* page) {
    disk.drop(page);
    host.drop(page);
  }

  // What the request has to know of memory that is draining, and in pieces.
  void tell(Request& request) {
    draining.tell(progress, request);
    request.is_joined = request.is_joined && world.traits().joins_memory;
    if (policy->makes_again() &&
        request.bytes < map.layout().reserved() / kLarge) {
      request.patience = request.bytes / kShortWait;
    }
  }

  // Read without the mutex. Pages were evicted to make room for others: since
  // all memory was last made one piece; since it was last asked whether it can
  // be made one.
  std::atomic<bool> has_evicted{false};
  std::atomic<bool> is_consolidation_due{false};
  // And ever.
  std::atomic<bool> has_been_short{false};
  void note_shortage() {
    has_evicted = is_consolidation_due = true;
    if (!has_been_short.load(std::memory_order_relaxed)) {
      has_been_short = true;
    }
  }

  // Memory that was allocated goes back unused: whoever gets it next has to
  // wait for `pending` in its place. Without the mutex.
  void return_pending(const void* memory, const Events& pending) noexcept {
    if (memory) {
      const Lock lock(mutex);
      if (const Block* block = map.block_of(memory)) {
        draining.handover().put(
            reinterpret_cast<uintptr_t>(memory), block->size, pending);
      }
    }
  }
};

} // namespace at::cuda::lms
