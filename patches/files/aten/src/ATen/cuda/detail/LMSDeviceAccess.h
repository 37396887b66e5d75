#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>

#include <utility>

namespace at::cuda::lms {

class Device;
struct ManagedStorage;

// A storage that an operator is about to touch.
struct Access {
  c10::StorageImpl* storage;
  bool writes;
};
using Accesses = c10::SmallVector<Access, 8>;

// A pin on a storage, taken for an access.
struct Pin {
  ManagedStorage* record;
  bool writes;
  bool is_new = false; // no operator has used it before
};
using Pins = c10::SmallVector<Pin, 8>; // in the order of pinning
using PinsByDevice = c10::SmallVector<std::pair<Device*, Pins>, 1>;

} // namespace at::cuda::lms
