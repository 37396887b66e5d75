#include <ATen/cuda/detail/LMSHostMemory.h>

#include <ATen/cuda/detail/LMSLayout.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

namespace at::cuda::lms {
namespace {

constexpr size_t kMinSlab = size_t{8} << 20; // bytes
constexpr size_t kMaxSlab = size_t{256} << 20; // bytes
constexpr size_t kPage = size_t{4} << 10; // bytes, the host's page

// 80 % of what the kernel says can be used without swapping, bytes.
size_t default_limit() {
  std::ifstream meminfo("/proc/meminfo");
  std::string name, unit;
  size_t kib = 0;
  while (meminfo >> name >> kib) {
    if (name == "MemAvailable:") {
      return kib * 1024 / 10 * 8;
    }
    std::getline(meminfo, unit);
  }
  return size_t{8} << 30; // no /proc: a guess that fits any training host
}

} // namespace

HostMemory& HostMemory::get() {
  static auto* pool = new HostMemory(); // leaked: no CUDA calls at exit
  return *pool;
}

void* HostMemory::allocate(size_t bytes, bool may_wait) {
  std::lock_guard<std::mutex> lock(mutex_);
  bytes = round_up(bytes, kAlignment);
  collect(/*wait=*/false);
  if (void* ptr = take(bytes)) {
    return ptr;
  }
  if (grow(bytes)) {
    return take(bytes);
  }
  // The host waits here because no memory is left that is not being copied
  // from; the oldest copy is the first to end.
  while (may_wait && collect(/*wait=*/true)) {
    if (void* ptr = take(bytes)) {
      return ptr;
    }
  }
  return nullptr;
}

void HostMemory::free(void* ptr, Event ready) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto* address = static_cast<char*>(ptr);
  stats_.used -= used_.at(address);
  leaving_.emplace_back(address, std::move(ready));
}

void HostMemory::set_limit(size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  stats_.limit = bytes;
}

HostMemory::Stats HostMemory::stats() {
  std::lock_guard<std::mutex> lock(mutex_);
  limit_locked();
  return stats_;
}

void HostMemory::reset_peak() {
  std::lock_guard<std::mutex> lock(mutex_);
  stats_.peak_used = stats_.used;
}

void HostMemory::trim() {
  std::lock_guard<std::mutex> lock(mutex_);
  // Waits for copies so that their memory can be given back as well.
  while (collect(/*wait=*/true)) {
  }
  for (auto it = slabs_.begin(); it != slabs_.end();) {
    auto range = free_.find(it->first);
    if (range == free_.end() || range->second != it->second.size) {
      ++it;
      continue;
    }
    free_by_size_.erase({range->second, range->first});
    free_.erase(range);
    stats_.reserved -= it->second.size;
    stats_.page_locked -= it->second.page_locked ? it->second.size : 0;
    it = slabs_.erase(it);
  }
}

size_t HostMemory::limit_locked() {
  if (stats_.limit == 0) {
    stats_.limit = default_limit();
  }
  return stats_.limit;
}

// Best fit among the free ranges; null if none is large enough.
void* HostMemory::take(size_t bytes) {
  auto it = free_by_size_.lower_bound({bytes, nullptr});
  if (it == free_by_size_.end()) {
    return nullptr;
  }
  auto [size, ptr] = *it;
  free_by_size_.erase(it);
  free_.erase(ptr);
  if (size > bytes) {
    insert_free(ptr + bytes, size - bytes);
  }
  used_[ptr] = bytes;
  stats_.used += bytes;
  stats_.peak_used = std::max(stats_.peak_used, stats_.used);
  return ptr;
}

// Adds a slab with room for `bytes`: page-locked, or pageable if the driver
// refuses. False if the limit forbids it or the host has no memory.
bool HostMemory::grow(size_t bytes) {
  const size_t limit = limit_locked();
  bytes = round_up(bytes, kPage);
  if (stats_.reserved + bytes > limit) {
    return false;
  }
  const size_t preferred =
      std::max(bytes, std::clamp(stats_.reserved / 4, kMinSlab, kMaxSlab));
  const size_t size = stats_.reserved + preferred > limit ? bytes : preferred;

  void* raw = nullptr;
  const bool page_locked =
      cudaHostAlloc(&raw, size, cudaHostAllocPortable) == cudaSuccess;
  void (*release)(char*) = [](char* p) { (void)cudaFreeHost(p); };
  if (!page_locked) {
    (void)cudaGetLastError(); // handled here by falling back
    raw = std::aligned_alloc(kPage, round_up(size, kPage));
    release = [](char* p) { std::free(p); };
  }
  if (!raw) {
    return false;
  }
  auto* memory = static_cast<char*>(raw);
  slabs_.emplace(memory, Slab{{memory, release}, size, page_locked});
  stats_.reserved += size;
  stats_.page_locked += page_locked ? size : 0;
  insert_free(memory, size);
  return true;
}

// Returns finished ranges to the free lists. With `wait` it blocks for the
// oldest one. False if nothing came back.
bool HostMemory::collect(bool wait) {
  bool any = false;
  while (!leaving_.empty()) {
    auto& [ptr, ready] = leaving_.front();
    if (!has_happened(ready)) {
      if (!wait || any) {
        break;
      }
      // See allocate: the host has nothing else to give. An error shows at
      // the copy's consumer; here the range must then stay unused.
      if (cudaEventSynchronize(ready.get()) != cudaSuccess) {
        (void)cudaGetLastError();
        break;
      }
    }
    give_back(ptr, used_.at(ptr));
    leaving_.pop_front();
    any = true;
  }
  return any;
}

void HostMemory::give_back(char* ptr, size_t bytes) {
  used_.erase(ptr);
  insert_free(ptr, bytes);
}

// Inserts a free range, merged with free neighbours of the same slab.
void HostMemory::insert_free(char* ptr, size_t bytes) {
  auto next = free_.lower_bound(ptr);
  if (next != free_.end() && ptr + bytes == next->first &&
      slabs_.find(next->first) == slabs_.end()) {
    bytes += next->second;
    free_by_size_.erase({next->second, next->first});
    next = free_.erase(next);
  }
  if (next != free_.begin() && slabs_.find(ptr) == slabs_.end()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == ptr) {
      free_by_size_.erase({previous->second, previous->first});
      ptr = previous->first;
      bytes += previous->second;
      free_.erase(previous);
    }
  }
  free_[ptr] = bytes;
  free_by_size_.emplace(bytes, ptr);
}

} // namespace at::cuda::lms
