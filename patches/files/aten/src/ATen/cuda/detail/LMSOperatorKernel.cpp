#include <ATen/cuda/detail/LMSOperatorKernel.h>

#include <ATen/DynamicLibrary.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <ATen/cuda/detail/LMSOperatorTraits.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/SmallVector.h>
#include <c10/util/bit_cast.h>
#include <torch/library.h>

#include <cuda.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>

namespace at::cuda::lms {
namespace {

constexpr size_t kArgumentsBefore = 4; // the grid and the stream
constexpr unsigned kWarpSize = 32; // threads
constexpr size_t kUsualCount = 16; // parameters without an allocation

// PyTorch shows no way to the functions of the driver that it calls itself.
decltype(&cuLaunchKernel) find_launch() {
  at::DynamicLibrary driver(
      "libcuda.so.1", /*alt_name=*/nullptr, /*leak_handle=*/true);
  return reinterpret_cast<decltype(&cuLaunchKernel)>(
      driver.sym("cuLaunchKernel"));
}

// The parameter in the first of 8 bytes: the machine is little-endian.
uint64_t parameter(const c10::IValue& argument, char type) {
  switch (type) {
    case 'O':
      return reinterpret_cast<uintptr_t>(argument.toTensor().const_data_ptr());
    case 'W':
      return reinterpret_cast<uintptr_t>(
          argument.toTensor().mutable_data_ptr());
    case 'f':
      return c10::bit_cast<uint32_t>(static_cast<float>(argument.toDouble()));
    case 'd':
      return c10::bit_cast<uint64_t>(argument.toDouble());
    default:
      return static_cast<uint64_t>(argument.toInt());
  }
}

class TritonKernel final : public c10::OperatorKernel {
 public:
  TritonKernel(
      int64_t function,
      int64_t warps,
      int64_t shared,
      std::string types)
      : function_(reinterpret_cast<CUfunction>(function)),
        threads_(static_cast<unsigned>(warps) * kWarpSize),
        shared_(static_cast<unsigned>(shared)),
        types_(std::move(types)) {}

  void operator()(
      const c10::OperatorHandle& op,
      c10::DispatchKeySet /*keys*/,
      torch::jit::Stack* stack) const {
    static const auto launch = find_launch();
    const size_t count = op.schema().arguments().size();
    const auto arguments = torch::jit::last(*stack, count);
    c10::SmallVector<uint64_t, kUsualCount> values(types_.size(), 0);
    c10::SmallVector<void*, kUsualCount> parameters;
    for (size_t i = 0; i < values.size(); ++i) {
      if (kArgumentsBefore + i < count) {
        values[i] = parameter(arguments[kArgumentsBefore + i], types_[i]);
      }
      parameters.push_back(&values[i]);
    }
    const auto x = static_cast<unsigned>(arguments[0].toInt());
    const auto y = static_cast<unsigned>(arguments[1].toInt());
    const auto z = static_cast<unsigned>(arguments[2].toInt());
    cudaStream_t stream = arguments[3].isNone()
        ? c10::cuda::getCurrentCUDAStream().stream()
        : reinterpret_cast<cudaStream_t>(arguments[3].toInt());
    if (x > 0 && y > 0 && z > 0) {
      const CUresult result = launch(
          function_,
          x,
          y,
          z,
          threads_,
          1,
          1,
          shared_,
          stream,
          parameters.data(),
          nullptr);
      TORCH_CHECK(
          result == CUDA_SUCCESS,
          "CUDA driver error ",
          static_cast<int>(result),
          " when ",
          op.schema().name(),
          " was launched");
    }
    torch::jit::drop(*stack, count);
  }

 private:
  CUfunction function_;
  const unsigned threads_; // of a block
  const unsigned shared_; // bytes
  const std::string types_;
};

} // namespace

void define_kernel(
    const std::string& schema,
    int64_t function,
    int64_t warps,
    int64_t shared,
    const std::string& types) {
  static std::mutex mutex; // none of LMS's is taken under it
  // Leaked: see Dispatcher.
  static auto* library = new torch::Library(
      torch::Library::FRAGMENT, "triton", std::nullopt, __FILE__, __LINE__);
  const std::string name = schema.substr(0, schema.find('('));
  const std::lock_guard<std::mutex> lock(mutex);
  library->def(schema.c_str());
  library->impl(
      name.c_str(),
      torch::dispatch(
          c10::DispatchKey::CUDA,
          torch::CppFunction::makeFromBoxedFunctor(
              std::make_unique<TritonKernel>(function, warps, shared, types))));
  // A launch is no operator to who takes programs to pieces.
  for (const auto key :
       {c10::DispatchKey::Autograd, c10::DispatchKey::Python}) {
    library->impl(
        name.c_str(),
        torch::dispatch(key, torch::CppFunction::makeFallthrough()));
  }
}

bool is_kernel(const c10::OperatorHandle& op) {
  return starts_with(op.schema().name(), "triton::") &&
      starts_with(op.schema().overload_name(), "lms");
}

bool is_pure_kernel(const c10::OperatorHandle& op) {
  return is_kernel(op) && starts_with(op.schema().overload_name(), "lms_pure");
}

} // namespace at::cuda::lms
