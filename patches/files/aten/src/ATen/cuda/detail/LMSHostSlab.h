#pragma once

#include <ATen/cuda/detail/LMSNuma.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <future>
#include <memory>

namespace at::cuda::lms {

// A piece of host memory, page-locked unless the driver refused. Given back
// to the system with the object; the caller sees to it that no copy uses it.
struct HostSlab {
  std::unique_ptr<char, void (*)(char*)> memory; // never null
  bool page_locked;
};

// A slab that is being made. Null if the host has no memory left.
using HostSlabOrder = std::shared_future<std::shared_ptr<HostSlab>>;

// Has a slab made by a thread in the background, since page-locking takes
// milliseconds: on the NUMA node if it is one, and in the context of the
// device. Whoever waits for the order must not hold a lock that a CUDA call
// may need.
HostSlabOrder order_slab(size_t bytes, c10::DeviceIndex device, int node);

bool is_ready(const HostSlabOrder& order);

// The node nearest to the device, or kAnyNode.
int nearest_node(c10::DeviceIndex device);

} // namespace at::cuda::lms
