#pragma once

#include <c10/core/StorageImpl.h>

#include <cstddef>

namespace at::cuda::lms {

class Device;
struct ManagedStorage;

// Which const accesses to a device's storages are checked: all that reach one
// outside of an operator, but see Note [Gradients that cross streams]. Called
// without the mutex, except where noted.
class AccessChecks {
 public:
  explicit AccessChecks(Device& device) : device_(device) {}

  void let_cross(c10::StorageImpl* storage);
  // With the mutex.
  void let_cross(ManagedStorage* record);
  // With the mutex: the storage is gone.
  void forget(const ManagedStorage& record);
  // Gradients are checked again.
  void forbid_crossing();
  // Whether reads are checked has changed.
  void renew();

 private:
  Device& device_;
  size_t crossing_ = 0; // records that may cross streams
};

} // namespace at::cuda::lms
