#include <ATen/cuda/detail/LMSHostSlab.h>

#include <cuda_runtime_api.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <string>
#include <system_error>

namespace at::cuda::lms {
namespace {

constexpr size_t kPage = size_t{4} << 10; // bytes, the host's page

char* allocate_page_locked(size_t bytes) {
  void* memory = nullptr;
  if (cudaHostAlloc(&memory, bytes, cudaHostAllocPortable) != cudaSuccess) {
    (void)cudaGetLastError(); // handled by falling back to pageable memory
    return nullptr;
  }
  return static_cast<char*>(memory);
}

std::shared_ptr<HostSlab> make_slab(size_t bytes) {
  if (char* memory = allocate_page_locked(bytes)) {
    return std::make_shared<HostSlab>(
        HostSlab{{memory, [](char* p) { (void)cudaFreeHost(p); }}, true});
  }
  if (void* memory = std::aligned_alloc(kPage, bytes)) {
    return std::make_shared<HostSlab>(HostSlab{
        {static_cast<char*>(memory), [](char* p) { std::free(p); }}, false});
  }
  return nullptr;
}

// What a new thread does, which then ends.
std::shared_ptr<HostSlab> make_slab_for(
    size_t bytes,
    c10::DeviceIndex device,
    int node) {
  // Otherwise its calls are for device 0, and would make a context there that
  // nobody needs.
  if (cudaSetDevice(device) != cudaSuccess) {
    (void)cudaGetLastError(); // such a context costs memory, no more
  }
  prefer_node(node);
  return make_slab(bytes);
}

} // namespace

HostSlabOrder order_slab(size_t bytes, c10::DeviceIndex device, int node) {
  // A thread of its own costs microseconds, against the milliseconds of the
  // call, and leaves nothing behind.
  try {
    return std::async(std::launch::async, make_slab_for, bytes, device, node)
        .share();
  } catch (const std::system_error&) {
    // No thread is to be had: whoever waits for the order makes the slab.
    return std::async(std::launch::deferred, make_slab, bytes).share();
  }
}

bool is_ready(const HostSlabOrder& order) {
  return order.valid() &&
      order.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

int nearest_node(c10::DeviceIndex device) {
  std::array<char, 32> bus{}; // "0000:3B:00.0"
  if (cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device) !=
      cudaSuccess) {
    (void)cudaGetLastError(); // any node will do
    return kAnyNode;
  }
  return nearest_node(std::string(bus.data()));
}

} // namespace at::cuda::lms
