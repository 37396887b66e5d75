#include <ATen/cuda/detail/LMSHostSlab.h>

#include <ATen/cuda/detail/LMSCudaCaptures.h>
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <string>
#include <system_error>
#include <utility>

namespace at::cuda::lms {
namespace {

constexpr int kPopulateWrite = 23; // MADV_POPULATE_WRITE; old headers lack it

struct Unmap {
  size_t bytes = 0;
  void operator()(char* begin) const {
    (void)munmap(begin, bytes);
  }
};
using Mapping = std::unique_ptr<char, Unmap>;

// Memory of the system's that takes none yet; it begins where a piece may. Null
// if there are no addresses left.
Mapping map_memory(size_t bytes) {
  const size_t mapped = bytes + kLockedPiece;
  void* address = mmap(
      nullptr,
      mapped,
      PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANONYMOUS,
      -1,
      0);
  if (address == MAP_FAILED) {
    return nullptr;
  }
  char* start = static_cast<char*>(address);
  const size_t before = bytes_to_border(start) % kLockedPiece;
  if (before > 0) {
    (void)munmap(start, before);
  }
  Mapping memory(start + before, Unmap{bytes});
  (void)munmap(memory.get() + bytes, mapped - before - bytes);
  // As memory of the driver's, it is in no forked process, and in no dump. Huge
  // pages are not to be had everywhere.
  if (madvise(memory.get(), bytes, MADV_DONTFORK) != 0) {
    return nullptr;
  }
  (void)madvise(memory.get(), bytes, MADV_DONTDUMP);
  (void)madvise(memory.get(), bytes, MADV_HUGEPAGE);
  return memory;
}

// Has the kernel find and clear the pages now. False if it has none.
bool populate(char* begin, size_t bytes) {
  if (madvise(begin, bytes, kPopulateWrite) == 0) {
    return true;
  }
  if (errno != EINVAL) {
    return false;
  }
  for (size_t at = 0; at < bytes; at += kHostPage) { // before Linux 5.14
    *static_cast<volatile char*>(begin + at) = 0;
  }
  return true;
}

// Of memory whose pieces are all page-locked.
void unlock(char* begin, size_t bytes) {
  const BesideCaptures beside;
  for (size_t at = 0; at < bytes; at += kLockedPiece) {
    if (cudaHostUnregister(begin + at) != cudaSuccess) {
      (void)cudaGetLastError(); // nobody can do anything about it
    }
  }
}

// See Note [Page-locking in pieces]. False if none of it is.
bool lock_in_pieces(char* begin, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kLockedPiece) {
    char* piece = begin + at;
    const size_t size = std::min(kLockedPiece, bytes - at);
    if (!populate(piece, size) ||
        cudaHostRegister(piece, size, cudaHostRegisterPortable) !=
            cudaSuccess) {
      (void)cudaGetLastError(); // handled by asking for other memory
      unlock(begin, at);
      return false;
    }
  }
  return true;
}

std::shared_ptr<HostSlab> make_registered(Mapping memory) {
  const size_t bytes = memory.get_deleter().bytes;
  if (!memory || !lock_in_pieces(memory.get(), bytes)) {
    return nullptr;
  }
  const auto give_back = [bytes](char* begin) {
    unlock(begin, bytes);
    (void)munmap(begin, bytes);
  };
  return std::make_shared<HostSlab>(
      HostSlab{{memory.release(), give_back}, true});
}

char* allocate_page_locked(size_t bytes) {
  void* memory = nullptr;
  if (cudaHostAlloc(&memory, bytes, cudaHostAllocPortable) != cudaSuccess) {
    (void)cudaGetLastError(); // handled by falling back to pageable memory
    return nullptr;
  }
  return static_cast<char*>(memory);
}

void free_page_locked(char* memory) {
  const BesideCaptures beside;
  (void)cudaFreeHost(memory);
}

std::shared_ptr<HostSlab> make_slab(Mapping memory, size_t bytes) {
  const BesideCaptures beside;
  if (auto slab = make_registered(std::move(memory))) {
    return slab;
  }
  if (char* memory = allocate_page_locked(bytes)) {
    return std::make_shared<HostSlab>(
        HostSlab{{memory, free_page_locked}, true});
  }
  if (void* memory = std::aligned_alloc(kHostPage, bytes)) {
    return std::make_shared<HostSlab>(HostSlab{
        {static_cast<char*>(memory), [](char* p) { std::free(p); }}, false});
  }
  return nullptr;
}

// What a new thread does, which then ends.
std::shared_ptr<HostSlab> make_slab_for(
    Mapping memory,
    size_t bytes,
    DeviceIndex device,
    int node) {
  // Otherwise its calls are for device 0, and would make a context there that
  // nobody needs.
  if (cudaSetDevice(device) != cudaSuccess) {
    (void)cudaGetLastError(); // such a context costs memory, no more
  }
  prefer_node(node);
  return make_slab(std::move(memory), bytes);
}

} // namespace

HostSlabOrder order_slab(size_t bytes, DeviceIndex device, int node) {
  // A thread of its own costs microseconds, against the milliseconds of the
  // call, and leaves nothing behind.
  try {
    return std::async(
               std::launch::async,
               make_slab_for,
               map_memory(bytes),
               bytes,
               device,
               node)
        .share();
  } catch (const std::system_error&) {
    // No thread is to be had: whoever waits for the order makes the slab.
    return std::async(
               std::launch::deferred, make_slab, map_memory(bytes), bytes)
        .share();
  }
}

bool is_ready(const HostSlabOrder& order) {
  return order.valid() &&
      order.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

int nearest_node(DeviceIndex device) {
  std::array<char, 32> bus{}; // "0000:3B:00.0"
  if (cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device) !=
      cudaSuccess) {
    (void)cudaGetLastError(); // any node will do
    return kAnyNode;
  }
  return nearest_node(std::string(bus.data()));
}

} // namespace at::cuda::lms
