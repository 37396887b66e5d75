// Handles of cuBLAS, which compute nothing: PyTorch makes one for each thread
// that multiplies, and gives it a workspace from its caching allocator, for
// each stream. Refused where SIMCUDA_CUBLAS is not set. Declared as far as they
// are used here; the library itself is never asked.
#include <atomic>
#include <cstdint>

#include "../simcuda.h"
#include "config.h"

using namespace simcuda;

namespace {

constexpr int kSuccess = 0;         // CUBLAS_STATUS_SUCCESS
constexpr int kNotInitialized = 1;  // CUBLAS_STATUS_NOT_INITIALIZED

}  // namespace

extern "C" {

SIMCUDA_API int simcudaHasCublas() {
  return config().cublas ? 1 : 0;
}

SIMCUDA_API int cublasCreate_v2(void** handle) {
  static std::atomic<uintptr_t> handles{0};
  *handle = reinterpret_cast<void*>(++handles);
  return config().cublas ? kSuccess : kNotInitialized;
}

SIMCUDA_API int cublasDestroy_v2(void* /*handle*/) {
  return kSuccess;
}

SIMCUDA_API int cublasSetStream_v2(void* /*handle*/, void* /*stream*/) {
  return kSuccess;
}

SIMCUDA_API int cublasSetWorkspace_v2(void* /*handle*/, void* /*workspace*/,
                                      size_t /*bytes*/) {
  return kSuccess;
}

SIMCUDA_API int cublasSetMathMode(void* /*handle*/, int /*mode*/) {
  return kSuccess;
}
}
