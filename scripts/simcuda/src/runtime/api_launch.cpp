// CUDA runtime: kernels. None of the wheel's kernels can run; a launch that
// reaches this file is an operator that libsimops.so does not replace. It is
// counted, named and refused. One kernel is simulated: torch.cuda._sleep's.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "../simcuda.h"
#include "calls.h"
#include "capture.h"
#include "device.h"
#include "launches.h"
#include "stream.h"

using namespace simcuda;

namespace {

// Clock cycles per second that torch.cuda._sleep is understood to count.
constexpr int64_t kClock = 1'000'000'000;

struct Kernel {
  const void* function;
  const char* name;  // mangled
};

struct Kernels {
  std::mutex mutex;
  std::vector<Kernel> all;  // tens of thousands, looked up only to complain
  std::vector<std::string> unsimulated;
};

Kernels& kernels() {
  static Kernels* k = new Kernels;
  return *k;
}

std::string find_name(const void* function) {
  std::lock_guard<std::mutex> lock(kernels().mutex);
  for (const Kernel& kernel : kernels().all) {
    if (kernel.function == function) {
      return kernel.name;
    }
  }
  return "(unknown)";
}

cudaError_t sleep_on(cudaStream_t handle, int64_t cycles) {
  const auto stream = find_stream(handle, current_device());
  if (!stream) {
    return cudaErrorInvalidResourceHandle;
  }
  if (const cudaError_t illegal = check_launch(*stream)) {
    return illegal;
  }
  const int64_t nanoseconds = cycles * 1'000'000'000 / kClock;
  stream->enqueue({TaskKind::Kernel,
                   [nanoseconds] {
                     std::this_thread::sleep_for(
                         std::chrono::nanoseconds(nanoseconds));
                   },
                   sleep_cost(nanoseconds)});
  return cudaSuccess;
}

cudaError_t launch(const void* function, void** arguments,
                   cudaStream_t stream) {
  SIMCUDA_ENTER("cudaLaunchKernel", cudaErrorUnknown);
  const std::string name = find_name(function);
  if (name.find("spin_kernel") != std::string::npos) {
    return report(sleep_on(stream, *static_cast<int64_t*>(arguments[0])));
  }
  std::fprintf(stderr, "simcuda: kernel %s is not simulated\n", name.c_str());
  std::lock_guard<std::mutex> lock(kernels().mutex);
  kernels().unsimulated.push_back(name);
  return report(cudaErrorNotSupported);
}

struct Configuration {
  dim3 grid;
  dim3 block;
  size_t shared;
  cudaStream_t stream;
};
thread_local std::vector<Configuration> pushed;

}  // namespace

uint64_t simcuda::unsimulated_launches() {
  std::lock_guard<std::mutex> lock(kernels().mutex);
  return kernels().unsimulated.size();
}

extern "C" {

SIMCUDA_API size_t simcudaGetUnsimulated(char* text, size_t size) {
  std::string all;
  std::lock_guard<std::mutex> lock(kernels().mutex);
  for (const std::string& name : kernels().unsimulated) {
    all += name + '\n';
  }
  if (size > 0) {
    const size_t n = std::min(size - 1, all.size());
    std::memcpy(text, all.data(), n);
    text[n] = '\0';
  }
  return all.size() + 1;
}

SIMCUDA_API cudaError_t cudaLaunchKernel(const void* function, dim3, dim3,
                                         void** arguments, size_t,
                                         cudaStream_t stream) {
  return launch(function, arguments, stream);
}

SIMCUDA_API cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3,
                                                    dim3, void** arguments,
                                                    size_t,
                                                    cudaStream_t stream) {
  return launch(function, arguments, stream);
}

SIMCUDA_API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config,
                                            const void* function,
                                            void** arguments) {
  return launch(function, arguments, config->stream);
}

SIMCUDA_API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes,
                                              const void*) {
  std::memset(attributes, 0, sizeof(*attributes));
  attributes->maxThreadsPerBlock = 1024;
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute,
                                             int) {
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(
    int* blocks, const void*, int, size_t) {
  *blocks = 1;
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void*, int, size_t, unsigned) {
  *blocks = 1;
  return cudaSuccess;
}

// What nvcc's generated code calls: at load time to register, and to launch.

SIMCUDA_API void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}

SIMCUDA_API void __cudaRegisterFatBinaryEnd(void**) {}

SIMCUDA_API void __cudaUnregisterFatBinary(void**) {}

SIMCUDA_API char __cudaInitModule(void**) {
  return 1;
}

SIMCUDA_API void __cudaRegisterFunction(void**, const char* function, char*,
                                        const char* name, int, void*, void*,
                                        void*, void*, int*) {
  std::lock_guard<std::mutex> lock(kernels().mutex);
  kernels().all.push_back({function, name});
}

SIMCUDA_API void __cudaRegisterVar(void**, char*, char*, const char*, int,
                                   size_t, int, int) {}

SIMCUDA_API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block,
                                                 size_t shared,
                                                 cudaStream_t stream) {
  pushed.push_back({grid, block, shared, stream});
  return 0;
}

SIMCUDA_API cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block,
                                                   size_t* shared,
                                                   void* stream) {
  const Configuration top = pushed.back();
  pushed.pop_back();
  *grid = top.grid;
  *block = top.block;
  *shared = top.shared;
  *static_cast<cudaStream_t*>(stream) = top.stream;
  return cudaSuccess;
}

SIMCUDA_API cudaError_t __cudaGetKernel(const void** kernel,
                                        const void* function) {
  *kernel = function;
  return cudaSuccess;
}

SIMCUDA_API cudaError_t __cudaLaunchKernel(const void* kernel, dim3, dim3,
                                           void** arguments, size_t,
                                           cudaStream_t stream) {
  return launch(kernel, arguments, stream);
}
}
