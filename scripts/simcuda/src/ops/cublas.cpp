#include "cublas.h"

#include <c10/macros/Macros.h>
#include <torch/version.h>

#include <set>
#include <string>

#include "../simcuda.h"

// Of ATen/cuda/CUDAContextLight.h, which wants headers of more libraries than
// are installed.
struct cublasContext;

#define TORCH_AT_LEAST(minor) \
  (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= (minor))

namespace at::cuda {
#if TORCH_AT_LEAST(12)
TORCH_CUDA_CPP_API cublasContext* getCurrentCUDABlasHandle(bool setup);
#else
TORCH_CUDA_CPP_API cublasContext* getCurrentCUDABlasHandle();
#endif
#if TORCH_AT_LEAST(9)
TORCH_CUDA_CPP_API void* getCUDABlasLtWorkspace();
#endif
#if TORCH_AT_LEAST(15)
TORCH_CUDA_CPP_API bool isCUDABlasWorkspaceCachingEnabled();
#endif
}  // namespace at::cuda

namespace simcuda {

void take_workspace(const c10::OperatorHandle& op) {
  static const bool has_cublas = simcudaHasCublas() != 0;
  if (!has_cublas) {
    return;
  }
  static const std::set<std::string> products = {"aten::mm", "aten::addmm",
                                                 "aten::bmm", "aten::baddbmm"};
  const std::string& name = op.operator_name().name;
  if (products.count(name) == 0) {
    return;
  }
#if TORCH_AT_LEAST(15)
  if (!at::cuda::isCUDABlasWorkspaceCachingEnabled()) {
    return;
  }
#endif
#if TORCH_AT_LEAST(12)
  (void)at::cuda::getCurrentCUDABlasHandle(/*setup=*/true);
#else
  (void)at::cuda::getCurrentCUDABlasHandle();
#endif
#if TORCH_AT_LEAST(9)
  if (name == "aten::addmm") {
    (void)at::cuda::getCUDABlasLtWorkspace();
  }
#endif
}

}  // namespace simcuda
