// Copies between the host and the devices.
#pragma once

#include <driver_types.h>

#include <cstddef>
#include <cstdint>

#include "stream.h"

namespace simcuda {

// As cudaMemcpyAsync: pageable host memory is read before this returns, and
// written before this returns.
cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                 Stream& on);

struct Copied {
  uint64_t host_to_device;
  uint64_t device_to_host;
};
Copied copied_bytes(int device);

}  // namespace simcuda
