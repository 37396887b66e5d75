#pragma once

#include <ATen/cuda/detail/LMSEvent.h>
#include <ATen/cuda/detail/LMSHostRanges.h>
#include <ATen/cuda/detail/LMSLayout.h>
#include <ATen/cuda/detail/LMSStats.h>
#include <ATen/cuda/detail/LMSTimes.h>
#include <c10/util/LargeModelSupport.h>
#include <c10/core/StorageImpl.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/SmallVector.h>

namespace at::cuda::lms {

class Device;

// The record of one storage that LMS manages. It is the context of the
// storage's DataPtr, which owns it; while pinned it outlives that DataPtr.
//
// Note [Only pins touch the StorageImpl]
// The address that a StorageImpl shows changes only when its first pin is taken
// or its last pin is given back, by a thread that holds a reference to it.
// Paging works on the record alone, so a storage may die on one thread while
// another evicts it, without any reference count being raised.
//
// Guarded by the mutex of `device`, except where noted.
struct ManagedStorage final : c10::lms::Context, Page {
  enum class State {
    kResident, // `memory` holds the bytes
    kPagedOut, // `host` holds the bytes
    kArriving, // one thread is paging in; others wait
  };

  Device& device; // constant
  // Keeps the StorageImpl's own memory, not its bytes, valid. Constant.
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  size_t index = 0; // in the device's list of records
  Block* block = nullptr; // in the device's layout; null unless resident

  State state = State::kResident;
  c10::DataPtr memory; // the native allocation, null unless resident
  // From HostMemory; empty unless it holds the bytes. Kept when they are paged
  // in, until they are written or host memory runs short.
  HostPieces host;

  // The stream whose memory it has, or had when it was evicted. A page-in
  // allocates there again, so that freeing it means what it means without LMS.
  cudaStream_t home; // changes where memory is lent, see LMSLoans.cpp
  // Streams with work queued on the bytes since they became resident. Each has
  // waited for their arrival.
  c10::SmallVector<cudaStream_t, 2> users;
  // Streams named by Tensor.record_stream; told to the allocator at the end.
  c10::SmallVector<c10::cuda::CUDAStream, 1> recorded;

  Event arrival; // page-in copy done; a timed event
  // What a stream's time counts as that waits for it.
  Activity waits_for = Activity::kWaitForDemand;
  Event write_back; // unless resident: the last copy to or from `host` done
  // Bytes sent to the host when the page-out was; tells page-outs apart.
  uint64_t written_back_at = 0;

  uint32_t pins = 0;
  bool held = false; // its address escaped: resident until the end
  bool is_in_graph = false; // held for a CUDA graph, whose replays may use it
  uintptr_t identity = 0; // see Note [Addresses to compare]
  bool dead = false; // no DataPtr refers to it any more
  // Const access is not checked. See Note [Gradients that cross streams].
  bool may_cross = false;

  ManagedStorage(Device& device, c10::StorageImpl* impl, cudaStream_t home);

  c10::StorageImpl* impl() const {
    return storage._unsafe_get_target();
  }
  Pool pool() const;
  bool is_used_on(cudaStream_t stream) const;
  // The StorageImpl shows the address.
  bool is_shown() const {
    return pins > 0 && state == State::kResident;
  }

  // See Note [Only pins touch the StorageImpl].
  void show_address();
  void hide_address();
  // Arms the access checks of an unpinned storage.
  void check_access();
  // Gives the native allocation back to the StorageImpl, which is marked until
  // the last pin is gone.
  void restore_data_ptr();
  void remove_pinned_mark();
};

// True for a storage that LMS does not manage and must not manage: its address
// escaped when it did, or it has pins of that time. The mark is LMS's error
// message, left in place without the checks that would show it.
bool must_stay_unmanaged(c10::StorageImpl* storage);

// Removes the access checks from a storage whose DataPtr was replaced behind
// LMS's back while they were armed. The caller holds a reference to it.
void disarm_if_stale(c10::StorageImpl* storage);

// The record of a storage, or null if LMS does not manage it. The caller holds
// a reference to the storage.
ManagedStorage* managed(c10::StorageImpl* storage);

// The record behind a DataPtr, or null.
ManagedStorage* managed(const c10::DataPtr& data_ptr);

} // namespace at::cuda::lms
