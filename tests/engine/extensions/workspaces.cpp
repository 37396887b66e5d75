// Asks the allocator what cuDNN's benchmark mode asks: how large a workspace
// can be. And has an operator that, as cuDNN's convolutions do, takes another
// algorithm if it gets no workspace.

#include <ATen/Functions.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/library.h>

namespace {

int64_t largest_block(int64_t device, int64_t guess) {
  auto largest = static_cast<size_t>(guess);
  c10::cuda::CUDACachingAllocator::cacheInfo(
      static_cast<c10::DeviceIndex>(device), &largest);
  return static_cast<int64_t>(largest);
}

constexpr int64_t kWorkspace = 28 << 20; // bytes

at::Tensor by_workspace(const at::Tensor& self) {
  bool has_workspace = true;
  try {
    at::empty({kWorkspace}, self.options().dtype(at::kByte));
  } catch (const c10::OutOfMemoryError&) {
    has_workspace = false;
  }
  return at::full({1}, has_workspace ? 1 : 0, self.options());
}

} // namespace

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("special_airy_ai", by_workspace);
}

TORCH_LIBRARY(workspaces, m) {
  m.def("largest_block(int device, int guess) -> int", largest_block);
}
