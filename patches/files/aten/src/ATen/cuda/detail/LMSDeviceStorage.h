#pragma once

#include <ATen/cuda/detail/LMSCorePageTable.h>
#include <c10/util/LargeModelSupport.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <vector>

namespace at::cuda::lms {

class Device;

// The record of one storage that LMS manages. It is the context of the
// storage's DataPtr, which owns it; while pinned it outlives that DataPtr.
//
// Note [Only pins touch the StorageImpl]
// The address that a StorageImpl shows changes only when an operator's first
// pin is taken or its last pin is given back, or the bytes arrive while there
// is such a pin: a thread holds a reference to it then. Paging works on the
// record alone, with pins of its own that show nothing, so a storage may die on
// one thread while another evicts it, without any reference count being raised.
//
// Guarded by the mutex of `device`, except where noted.
struct ManagedStorage final : c10::lms::Context, PageEntry {
  Device& device; // constant
  // Keeps the StorageImpl's own memory, not its bytes, valid. Constant.
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  // Streams named by Tensor.record_stream; told to the allocator at the end.
  c10::SmallVector<c10::cuda::CUDAStream, 1> recorded;

  bool held = false; // its address escaped: resident until the end
  bool is_in_graph = false; // held for a CUDA graph, whose replays may use it
  uintptr_t identity = 0; // see Note [Addresses to compare]
  // Const access is not checked. See Note [Gradients that cross streams].
  bool may_cross = false;

  // Keeps the storage that it has since its own died.
  c10::intrusive_ptr<c10::StorageImpl> orphan;

  ManagedStorage(Device& device, c10::StorageImpl* impl, cudaStream_t home);

  c10::StorageImpl* impl() const {
    return storage._unsafe_get_target();
  }

  // See Note [Only pins touch the StorageImpl].
  void show_address() override;
  void hide_address() override;
  // Arms the access checks of an unpinned storage.
  void check_access();
  // Gives the native allocation back to the StorageImpl, which is marked until
  // the last pin is gone.
  void restore_data_ptr();
  // Its storage dies, but the record stays, for a storage that only it has.
  void move_to_orphan();
  // Removes the mark.
  void end() override;
  void set_home(Stream stream) override;
};

// The page of a policy that is a storage's.
inline ManagedStorage* managed(Page* page) {
  return static_cast<ManagedStorage*>(entry(page));
}

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

// The same, null for one that is not on such a device. Those without a device
// yet are as they were: LMS adopts on first touch.
ManagedStorage* record_of(const c10::Storage& storage);

// The record behind a DataPtr, or null.
ManagedStorage* managed(const c10::DataPtr& data_ptr);

} // namespace at::cuda::lms
