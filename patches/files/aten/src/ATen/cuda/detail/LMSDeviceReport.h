#pragma once

#include <ATen/cuda/detail/LMSCoreStats.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace at::cuda::lms {

class Device;

// Without the device's mutex.
DeviceStats stats_of(Device& device);
void reset_peaks(Device& device);

// A storage whose bytes the host has, or that were dropped.
struct PageAway {
  enum class Place : int64_t { kHost, kDropped, kBoth, kDisk };

  uint64_t id = 0; // as in a trace
  size_t bytes = 0;
  Place place = Place::kHost;
};
std::vector<PageAway> pages_away(Device& device);

// What is pinned, reclaimable and on the host, and what to change.
std::string describe_memory(Device& device);

} // namespace at::cuda::lms
