#pragma once

#include <ATen/cuda/detail/LMSHostNuma.h>
#include <ATen/cuda/detail/LMSCoreHandles.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>

namespace at::cuda::lms {

// Note [Page-locking in pieces]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// While the driver page-locks memory it holds locks that other CUDA calls need,
// also those of other threads. cudaHostAlloc holds them for a whole slab, and
// most of that time the kernel clears pages. So a slab is memory of the
// system's: a thread in the background has the kernel clear a piece of it,
// which needs none of the driver's locks, has it page-locked by
// cudaHostRegister, and goes on with the next piece. The calls of other threads
// get in between, and none waits for longer than one piece takes: a few
// milliseconds, against 150 and more for a slab of 1 GiB.
//
// There is no switch: the sum is about the same, since the same pages are
// cleared and pinned, and others wait less. Huge pages make it less. (Linux
// 6.18, one core of a server: pages of 4 KiB are cleared at 1.6 GB/s and then
// pinned at 28 GB/s, pages of 2 MiB at 10 and more than 200 GB/s.) Where the
// driver refuses (some devices cannot register memory at all), cudaHostAlloc is
// asked as before, and after that there is pageable memory.
//
// To CUDA each piece is memory of its own, and a copy must not go from one into
// the next. Pieces begin at multiples of kLockedPiece, so that a copy can be
// cut without asking which slab it is from.
//
// A process that is forked does not get this memory. It could do nothing with
// it; fork would have to copy what is pinned; and where the driver pins pages
// in the old way, the first write after a fork would leave the device with the
// wrong page.

constexpr size_t kHostPage = size_t{4} << 10; // bytes

// Bytes that one call page-locks: in about 4 ms. A copy of so much takes 0.2 ms
// on the fastest links, 20 times as long as it takes to start one.
constexpr size_t kLockedPiece = size_t{64} << 20;

// Bytes from the address to where a copy has to end at the latest.
inline size_t bytes_to_border(const char* address) {
  return kLockedPiece - reinterpret_cast<uintptr_t>(address) % kLockedPiece;
}

// A piece of host memory, page-locked unless the driver refused. Given back
// to the system with the object; the caller sees to it that no copy uses it.
struct HostSlab {
  std::unique_ptr<char, std::function<void(char*)>> memory; // never null
  bool page_locked;
};

// A slab that is being made. Null if the host has no memory left.
using HostSlabOrder = std::shared_future<std::shared_ptr<HostSlab>>;

// Has a slab made by a thread in the background, since page-locking takes
// milliseconds: on the NUMA node if it is one, and in the context of the
// device. Whoever waits for the order must not hold a lock that a CUDA call
// may need.
HostSlabOrder order_slab(size_t bytes, DeviceIndex device, int node);

bool is_ready(const HostSlabOrder& order);

// The node nearest to the device, or kAnyNode.
int nearest_node(DeviceIndex device);

} // namespace at::cuda::lms
