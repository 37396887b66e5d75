#pragma once

#include <ATen/cuda/detail/LMSDeviceAccess.h>
#include <ATen/cuda/detail/LMSDeviceChecks.h>
#include <ATen/cuda/detail/LMSDeviceLimit.h>
#include <ATen/cuda/detail/LMSDeviceConsolidation.h>
#include <ATen/cuda/detail/LMSCudaWorld.h>
#include <ATen/cuda/detail/LMSDeviceLoans.h>
#include <ATen/cuda/detail/LMSDeviceMirror.h>
#include <ATen/cuda/detail/LMSDeviceRecipes.h>
#include <ATen/cuda/detail/LMSCorePager.h>
#include <ATen/cuda/detail/LMSDeviceRoom.h>
#include <ATen/cuda/detail/LMSDeviceSharing.h>
#include <ATen/cuda/detail/LMSDeviceStorage.h>
#include <ATen/cuda/detail/LMSTrace.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace at::cuda::lms {

// Note [Lock order of Large Model Support]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// 1. the caching allocator's mutex of a device (upstream's)
// 2. the mutex of that device's lms::Pager
// 3. the mutex of the Trace
// 4. the mutex of HostMemory, and those of the event pools
// 5. the lock of the file of HostLedger, which processes share
// 6. the mutex of Sharing, of what processes on one card know of each other
// A thread takes them in this order only. (LMSOperatorBackward's is taken
// before 2, and never with 1.) So nothing that may allocate or free device
// memory runs under 2 to 6: memory to be freed is collected in `Freed` and let
// go after 2 is released. No mutex of LMS is held while the GIL is taken:
// reference counts of storages, whose changes may take the GIL, are not touched
// under 2, and the allocator, whose stack recorder may take it, is not called.
// No thread holds the mutexes of two devices. `Lock` checks that in every
// build. The threads that make slabs of host memory take none of these; who
// waits for one of them has given 4 back. What is queued on the device may wait
// for what another thread is about to launch, so whoever waits for the device
// has given back all that such a thread may need.

// What is known of an operator that has been launched.
struct Launched {
  uint64_t name = 0; // hash of its name
  Trace::Span span; // of a trace that is being recorded
  std::shared_ptr<Recipe> recipe; // null: it is not kept
  uint64_t signature = 0; // see Recipe::signature
  c10::ArrayRef<c10::IValue> results;
};

// LMS on one device: the pager, and what ties it to PyTorch, each part in a
// header of its own. What is here are the storages and the operators that use
// them. The methods are thread safe.
class Device {
 public:
  // The device's engine; made on first use, when CUDA is initialised.
  static Device& get(c10::DeviceIndex index);
  // As above, null if there is none yet. Takes no lock.
  static Device* find(c10::DeviceIndex index);
  static std::vector<Device*> all();

  // --- parts ---

  c10::DeviceIndex index() const {
    return index_;
  }
  CudaWorld& world() {
    return world_;
  }
  Pager& pager() {
    return pager_;
  }
  std::mutex& mutex() {
    return pager_.books.mutex;
  }
  MemoryMap& map() {
    return pager_.books.map;
  }
  Room& room() {
    return room_;
  }
  CardLimit& limit() {
    return limit_;
  }
  Sharing& sharing() {
    return sharing_;
  }
  Consolidation& consolidation() {
    return consolidation_;
  }
  Loans& loans() {
    return loans_;
  }
  Mirror& mirror() {
    return mirror_;
  }
  AccessChecks& checks() {
    return checks_;
  }
  Recipes& recipes() {
    return recipes_;
  }

  // --- operators ---

  // Pins the storages, adopting those not managed yet if `adopt`, and pages in
  // what is not resident; later work on `stream` sees the bytes. If it throws
  // no pin is left behind; c10::OutOfMemoryError when there is no room.
  Pins pin(const Accesses& accesses, cudaStream_t stream, bool adopt);
  // Gives the pins back.
  void unpin(const Pins& pins) noexcept;
  // The same in two steps, for pins that outlive the operator: the thread that
  // took them lets go of them, and later any thread gives them back.
  void disown(const Pins& pins) const;
  void unpin_disowned(const Pins& pins) noexcept;
  // The operator is launched: gives its pins back, starts to manage its
  // results, which work on `stream` has written, and does what the policy wants
  // done next.
  void finish_operator(
      const Pins& pins,
      const Accesses& results,
      cudaStream_t stream,
      const Launched& launched) noexcept;

  // --- storages ---

  // Starts to manage a storage that exists.
  void adopt_existing(c10::StorageImpl* storage);
  // See Note [Hints]. What LMS does not manage stays where it is in any case.
  void set_hint(c10::StorageImpl* storage, Hint hint);
  // Pins for the rest of the storage's life and waits on the host, so that
  // the bytes are valid on any stream.
  void hold(ManagedStorage* storage);
  // See Note [Addresses to compare].
  uintptr_t identity(ManagedStorage* storage);
  // Stops managing: the StorageImpl gets its native DataPtr back. The caller
  // holds a reference to it.
  void release(c10::StorageImpl* storage);
  // Called by the DataPtr's deleter.
  void forget(ManagedStorage* storage) noexcept;
  void record_stream(ManagedStorage* storage, c10::cuda::CUDAStream stream);
  bool is_resident(ManagedStorage* storage);
  // The copy by which the bytes of a pinned storage came; null if they never
  // left.
  Event arrival_of(const ManagedStorage* storage);
  // Stops managing every storage. Throws c10::OutOfMemoryError, with LMS still
  // on, if they do not fit.
  void bring_all_back();

 private:
  explicit Device(c10::DeviceIndex index);

  // Without the mutex.
  Pins try_pin(const Accesses& accesses, cudaStream_t stream, bool adopt);
  void note_writes(const Pins& pins, bool is_inside);
  void watch_no_more(ManagedStorage* record);
  void page_in(ManagedStorage* storage);
  bool pin_for_good(ManagedStorage* storage, Event& arrival);

  // With the mutex.
  ManagedStorage* adopt(
      c10::StorageImpl* storage,
      std::optional<cudaStream_t> stream = std::nullopt);
  void give_back(const Pins& pins, Freed& freed) noexcept;
  size_t manage(const Accesses& results, cudaStream_t stream, bool may_cross);
  void note_holder(ManagedStorage* storage);
  bool may_have_unseen_users(const ManagedStorage& storage) const;
  void take_memory_of(ManagedStorage* storage, Freed& freed) noexcept;
  void remove(ManagedStorage* storage, Freed& freed) noexcept;

  const c10::DeviceIndex index_;
  CudaWorld world_;
  Pager pager_;
  Room room_{*this};
  CardLimit limit_{*this};
  Sharing sharing_{*this};
  Consolidation consolidation_{*this};
  Loans loans_{*this};
  Mirror mirror_{*this};
  AccessChecks checks_{*this};
  Recipes recipes_{*this};
  Operator operator_; // scratch
};

} // namespace at::cuda::lms
