#pragma once

#include <ATen/cuda/detail/LMSCoreHandles.h>
#include <ATen/cuda/detail/LMSHostLedger.h>
#include <ATen/cuda/detail/LMSHostRanges.h>
#include <ATen/cuda/detail/LMSHostSlab.h>

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace at::cuda::lms {

// Note [Host memory reserved ahead]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Page-locking is slower than the copies into the memory, so slabs are made by
// a thread in the background, and the next one is ordered when there is no room
// for a request as large as it will be. Whoever needs memory that is still
// being made waits for it, without any mutex (HostMemory::Wait).
//
// A slab counts as taken when it is ordered, and joins the free memory when a
// request finds no room without it, not when it is ready. So which requests are
// served and from where does not depend on how fast the thread is: the same
// program always gets the same slabs in the same order.
//
// At most one slab per pool is on order. It is given up for a request that
// the limit would otherwise refuse, and so are slabs that hold nothing. After
// the driver has refused to page-lock one, or the limit to allow one, none is
// ordered ahead until a request gets a page-locked one again.

// Host memory for paged-out storages, for all devices.
//
// Memory comes in slabs, page-locked where the driver grants it and pageable
// otherwise, near the device that asks for it, and is sub-allocated exactly
// (rounded to kAlignment), so a model paged out takes its own size and not the
// next power of two. What no free range is large enough for is given in pieces,
// so that little of it stays unused. What the slabs of all processes take
// together never exceeds the limit, see Note [Processes that share the host's
// memory].
//
// Thread safe. Under its mutex only the lock of the ledger's file is taken.
class HostMemory {
 public:
  // Sub-allocation granularity, bytes: what disks want of memory that is copied
  // to them without a detour. Copy engines prefer a multiple of 512.
  static constexpr size_t kAlignment = 4096;

  struct Stats {
    size_t limit = 0; // bytes the slabs of all processes may take
    size_t others = 0; // bytes that those of other processes take now
    size_t reserved = 0; // bytes that those of this one take, or are to take
    // The part of `reserved` that is page-locked. What is on order counts as
    // such until the driver refuses.
    size_t page_locked = 0;
    size_t used = 0; // bytes handed out now
    size_t peak_used = 0;
  };

  static HostMemory& get();

  using Claim = HostLedger::Claim;

  // What has to happen before a request can be served. Page-locking takes
  // locks of the driver for its whole time, and a copy may wait for what
  // another thread has yet to launch; so whoever holds a mutex waits later, or
  // not.
  class Wait {
   public:
    explicit Wait(bool is_allowed) : is_allowed_(is_allowed) {}
    bool is_needed() const {
      return is_needed_;
    }
    // For what makes room: a transfer to disk, say.
    void await(const Event& event) {
      event_ = event;
      is_needed_ = true;
    }
    const Event& awaited() const {
      return event_;
    }
    bool is_allowed() const {
      return is_allowed_;
    }

   private:
    friend class HostMemory;
    bool is_allowed_;
    bool is_needed_ = false;
    bool has_waited_ = false; // for an order, since the last request
    HostSlabOrder order_; // is ready
    Event event_; // has happened: the end of a copy out of freed memory, say
    // Given up, and free then; `bytes_` of the ledger in all.
    std::vector<HostSlabOrder> orders_;
    std::vector<std::shared_ptr<HostSlab>> slabs_;
    size_t bytes_ = 0;
  };

  // Empty when a wait is needed, or what is claimed of the limit, or the host's
  // memory, is spent; with Claim::kWhole only when waiting for copies out of
  // freed memory does not help either. More than `bytes` by less than
  // kAlignment.
  HostPieces allocate(
      size_t bytes,
      DeviceIndex device,
      Claim claim,
      Wait& wait);

  // Waits on the host, if that is allowed and needed; the request can then be
  // made again. The caller holds no mutex. False if there was no wait or it
  // failed: the error shows at the copy's consumer.
  bool finish(Wait& wait);

  // Takes the memory back once `ready` has happened on the device: the copy
  // that reads it is then done. A null event means now.
  void free(HostPieces pieces, Event ready);

  // Bytes; 0 restores the default, see Note [What the host has for LMS].
  void set_limit(size_t bytes);
  Stats stats();
  void reset_peak();

  // Gives slabs that hold nothing back to the system.
  void trim();

  // False if the limit holds for each process alone, for want of a file that
  // they share.
  bool is_shared();

 private:
  // What is near one NUMA node.
  struct Pool {
    int node = kAnyNode;
    HostRanges free;
    HostSlabOrder order; // of the next slab, if it is valid
    size_t ordered = 0; // bytes of it
    bool reserves_ahead = false;
  };
  struct Slab {
    std::shared_ptr<HostSlab> memory;
    size_t bytes;
    Pool* pool;
  };
  struct Freed {
    HostPieces pieces;
    Event ready;
  };
  using Lock = std::unique_lock<std::mutex>;

  HostMemory();

  int node_of(DeviceIndex device);
  Pool& pool_of(DeviceIndex device);
  HostPieces take(Pool& pool, size_t bytes);
  HostPieces take_anywhere(size_t bytes);
  bool grow(
      Pool& pool,
      size_t bytes,
      DeviceIndex device,
      Claim claim,
      Wait& wait);
  bool order(
      Pool& pool,
      size_t bytes,
      DeviceIndex device,
      Claim claim,
      Wait& wait);
  void reserve_ahead(Pool& pool, size_t bytes, DeviceIndex device);
  void place_order(Pool& pool, size_t bytes, DeviceIndex device);
  bool receive_order(Pool& pool);
  void give_up_unused(Wait& wait);
  bool collect();
  void wait_for_a_copy(Wait& wait);
  void give_back(const HostPieces& pieces);
  size_t limit_locked();
  size_t next_slab(size_t bytes) const;
  void stop();

  std::mutex mutex_;
  std::map<DeviceIndex, int> node_by_device_;
  std::map<int, Pool> pools_; // by NUMA node
  std::map<char*, Slab> slabs_; // by address
  std::list<Freed> freed_; // freed, copy still running; oldest first
  HostLedger ledger_;
  size_t limit_ = 0; // bytes; 0: the default, which is not known yet
  size_t bytes_used_ = 0;
  size_t peak_used_ = 0;
  bool is_stopped_ = false; // the process is ending
};

} // namespace at::cuda::lms
