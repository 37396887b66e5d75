#pragma once

#include <ATen/cuda/detail/LMSCoreStats.h>

#include <string>

namespace at::cuda::lms {

class Device;

// Without the device's mutex.
DeviceStats stats_of(Device& device);
void reset_peaks(Device& device);
// What is pinned, reclaimable and on the host, and what to change.
std::string describe_memory(Device& device);

} // namespace at::cuda::lms
