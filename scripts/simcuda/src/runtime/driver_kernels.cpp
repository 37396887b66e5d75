// CUDA driver: kernels that a program compiles itself, as Triton does. A module
// is its image, and whoever has set the runner finds the function of that name
// in it and computes what the function would, or says what it costs.
#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>

#include "../simcuda.h"
#include "calls.h"
#include "capture.h"
#include "device.h"
#include "memory.h"
#include "stream.h"

using namespace simcuda;

namespace {

struct Module {
  const void* image;
  std::string file;  // the image, if it was loaded from one
};

struct DriverFunction {
  int64_t number;  // the runner's
};

std::atomic<const SimcudaRunner*> runner{nullptr};

// A launch that the runner has prepared, until it has run.
class Launch {
 public:
  Launch(const SimcudaRunner& by, int64_t number) : by_(by), number_(number) {}
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;
  ~Launch() {
    if (runner.load() == &by_) {
      by_.forget(number_);
    }
  }
  void run() const {
    if (by_.run(number_) != 0) {
      throw std::runtime_error("a kernel of Triton failed");
    }
  }

 private:
  const SimcudaRunner& by_;
  const int64_t number_;
};

// A launch in virtual time, where nothing runs; a trial costs nothing.
CUresult spend(const SimcudaRunner& by, int64_t function,
               const std::array<unsigned, 3>& grid, CUstream stream) {
  SimcudaKernel cost{};
  if (by.measure(function, grid.data(), &cost) != 0) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (cost.launches == 0) {
    return CUDA_SUCCESS;
  }
  simcudaSpendOperation();
  return simcudaTime(stream, current_device(), &cost) == cudaSuccess
             ? CUDA_SUCCESS
             : CUDA_ERROR_LAUNCH_FAILED;
}

CUresult launch(CUfunction handle, std::array<unsigned, 3> grid,
                CUstream stream_handle, void** parameters) {
  const SimcudaRunner* by = runner.load();
  const auto* function = reinterpret_cast<const DriverFunction*>(handle);
  const auto stream = find_stream(stream_handle, current_device());
  if (by == nullptr || function == nullptr) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (!stream) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  if (check_launch(*stream) != cudaSuccess) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (timed()) {
    return spend(*by, function->number, grid, stream_handle);
  }
  const int64_t number = by->prepare(function->number, grid.data(), parameters);
  if (number < 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto prepared = std::make_shared<Launch>(*by, number);
  if (config().kernels == Kernels::Inline &&
      simcudaIsCapturing(stream_handle, stream->device) == 0) {
    // On this thread: the runner is Python, which the caller may have locked.
    stream->tail().wait();
    try {
      prepared->run();
    } catch (const std::exception& error) {
      stick(cudaErrorAssert, error.what());
      return CUDA_ERROR_ASSERT;
    }
    return CUDA_SUCCESS;
  }
  stream->enqueue({TaskKind::Kernel, [prepared] { prepared->run(); }});
  return sticky() == cudaSuccess ? CUDA_SUCCESS : CUDA_ERROR_LAUNCH_FAILED;
}

}  // namespace

#define ENTER_DRIVER(name)                                                \
  static Function& entered = ::simcuda::function(name, cudaErrorUnknown); \
  if (enter(entered) != cudaSuccess) {                                    \
    return CUDA_ERROR_UNKNOWN;                                            \
  }

extern "C" {

SIMCUDA_API void simcudaSetRunner(const SimcudaRunner* by) {
  runner.store(by);
}

SIMCUDA_API CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  ENTER_DRIVER("cuModuleLoadData")
  *module = reinterpret_cast<CUmodule>(new Module{image, {}});
  return CUDA_SUCCESS;
}

SIMCUDA_API CUresult cuModuleLoad(CUmodule* module, const char* path) {
  ENTER_DRIVER("cuModuleLoad")
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return CUDA_ERROR_FILE_NOT_FOUND;
  }
  auto* loaded = new Module;
  loaded->file.assign(std::istreambuf_iterator<char>(file), {});
  loaded->image = loaded->file.data();
  *module = reinterpret_cast<CUmodule>(loaded);
  return CUDA_SUCCESS;
}

SIMCUDA_API CUresult cuModuleUnload(CUmodule module) {
  delete reinterpret_cast<Module*>(module);
  return CUDA_SUCCESS;
}

// Functions live for ever: programs keep their handles.
SIMCUDA_API CUresult cuModuleGetFunction(CUfunction* function, CUmodule module,
                                         const char* name) {
  const SimcudaRunner* by = runner.load();
  const int64_t number =
      by == nullptr
          ? -1
          : by->find(reinterpret_cast<const Module*>(module)->image, name);
  if (number < 0) {
    return CUDA_ERROR_NOT_FOUND;
  }
  *function = reinterpret_cast<CUfunction>(new DriverFunction{number});
  return CUDA_SUCCESS;
}

SIMCUDA_API CUresult cuFuncGetAttribute(int* value,
                                        CUfunction_attribute attribute,
                                        CUfunction /*function*/) {
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
           : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS            ? 32
                                                                : 0;
  return CUDA_SUCCESS;
}

SIMCUDA_API CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) {
  return CUDA_SUCCESS;
}

SIMCUDA_API CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) {
  return CUDA_SUCCESS;
}

SIMCUDA_API CUresult cuLaunchKernel(CUfunction function, unsigned x, unsigned y,
                                    unsigned z, unsigned, unsigned, unsigned,
                                    unsigned, CUstream stream,
                                    void** parameters, void** /*extra*/) {
  ENTER_DRIVER("cuLaunchKernel")
  return launch(function, {x, y, z}, stream, parameters);
}

SIMCUDA_API CUresult cuLaunchKernelEx(const CUlaunchConfig* config,
                                      CUfunction function, void** parameters,
                                      void** /*extra*/) {
  ENTER_DRIVER("cuLaunchKernelEx")
  return launch(function,
                {config->gridDimX, config->gridDimY, config->gridDimZ},
                config->hStream, parameters);
}

// That address of the device's memory; an error for any other, which a kernel
// could not read.
SIMCUDA_API CUresult cuPointerGetAttribute(void* value,
                                           CUpointer_attribute attribute,
                                           CUdeviceptr address) {
  if (attribute != CU_POINTER_ATTRIBUTE_DEVICE_POINTER ||
      find_range(reinterpret_cast<void*>(address)).place != Place::Device) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *static_cast<CUdeviceptr*>(value) = address;
  return CUDA_SUCCESS;
}
}
