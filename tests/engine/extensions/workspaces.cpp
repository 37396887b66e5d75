// Asks the allocator what cuDNN's benchmark mode asks: how large a workspace
// can be.

#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/library.h>

namespace {

int64_t largest_block(int64_t device, int64_t guess) {
  auto largest = static_cast<size_t>(guess);
  c10::cuda::CUDACachingAllocator::cacheInfo(
      static_cast<c10::DeviceIndex>(device), &largest);
  return static_cast<int64_t>(largest);
}

} // namespace

TORCH_LIBRARY(workspaces, m) {
  m.def("largest_block(int device, int guess) -> int", largest_block);
}
