#pragma once

#include <cstdint>
#include <memory>
#include <vector>

// What an event and a stream are is CUDA's business, or the simulation's.
struct CUevent_st;
struct CUstream_st;

namespace at::cuda::lms {

using DeviceIndex = int8_t; // as c10::DeviceIndex
using Stream = CUstream_st*; // as cudaStream_t

// Shared by whoever has to wait for it. Null: nothing to wait for.
using Event = std::shared_ptr<CUevent_st>;
using Events = std::vector<Event>;

inline void append(Events& events, const Events& more) {
  events.insert(events.end(), more.begin(), more.end());
}

} // namespace at::cuda::lms
