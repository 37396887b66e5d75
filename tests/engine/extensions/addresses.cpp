// An extension as users write them: every way to take a tensor's address that
// is not an operator. It reads and writes through the CUDA runtime, as a kernel
// launched by an extension would.

#include <ATen/ATen.h>
#include <cuda_runtime_api.h>
#include <torch/library.h>

#include <string>
#include <vector>

namespace {

// The address of the tensor's first element, taken in the named way.
void* address_of(const at::Tensor& tensor, const std::string& way) {
  if (way == "data_ptr<float>") {
    return tensor.data_ptr<float>();
  }
  if (way == "data_ptr") {
    return tensor.data_ptr();
  }
  if (way == "const_data_ptr<float>") {
    return const_cast<float*>(tensor.const_data_ptr<float>());
  }
  if (way == "const_data_ptr") {
    return const_cast<void*>(tensor.const_data_ptr());
  }
  if (way == "mutable_data_ptr<float>") {
    return tensor.mutable_data_ptr<float>();
  }
  if (way == "mutable_data_ptr") {
    return tensor.mutable_data_ptr();
  }
  if (way == "storage().data") {
    return static_cast<char*>(const_cast<void*>(tensor.storage().data())) +
        tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
  }
  if (way == "storage().mutable_data") {
    return static_cast<char*>(tensor.storage().mutable_data()) +
        tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
  }
  if (way == "storage().data_ptr") {
    return static_cast<char*>(tensor.storage().data_ptr().get()) +
        tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
  }
  if (way == "packed_accessor") {
    return tensor.packed_accessor64<float, 1>().data();
  }
  if (way == "accessor") {
    return tensor.generic_packed_accessor<float, 1>().data();
  }
  TORCH_CHECK(false, "no such way: ", way);
}

// The tensor's floats, read at that address.
std::vector<double> read(const at::Tensor& tensor, const std::string& way) {
  const void* address = address_of(tensor, way);
  TORCH_CHECK(address != nullptr, "null address");
  std::vector<float> values(static_cast<size_t>(tensor.numel()));
  TORCH_CHECK(
      cudaDeviceSynchronize() == cudaSuccess &&
      cudaMemcpy(
          values.data(),
          address,
          values.size() * sizeof(float),
          cudaMemcpyDeviceToHost) == cudaSuccess);
  return {values.begin(), values.end()};
}

// Writes zeros there.
void clear(const at::Tensor& tensor, const std::string& way) {
  void* address = address_of(tensor, way);
  TORCH_CHECK(address != nullptr, "null address");
  TORCH_CHECK(
      cudaMemset(address, 0, tensor.nbytes()) == cudaSuccess &&
      cudaDeviceSynchronize() == cudaSuccess);
}

// What custom operators do most: allocate the result, then take addresses of
// the arguments and of what they just made.
at::Tensor twice(const at::Tensor& tensor, const std::string& way) {
  const auto values = read(tensor, way);
  at::Tensor result = at::empty_like(tensor);
  std::vector<float> doubled;
  for (const double value : values) {
    doubled.push_back(static_cast<float>(2 * value));
  }
  TORCH_CHECK(
      cudaMemcpy(
          address_of(result, way),
          doubled.data(),
          doubled.size() * sizeof(float),
          cudaMemcpyHostToDevice) == cudaSuccess);
  return result;
}

} // namespace

// The first three have one kernel for all dispatch keys, as pybind functions
// have none: LMS does not see their arguments. The fourth is a CUDA kernel.
TORCH_LIBRARY(LIBRARY, m) {
  m.def("read(Tensor tensor, str way) -> float[]", read);
  m.def("clear(Tensor tensor, str way) -> ()", clear);
  m.def("make_twice(Tensor tensor, str way) -> Tensor", twice);
  m.def("twice(Tensor tensor, str way) -> Tensor");
}

TORCH_LIBRARY_IMPL(LIBRARY, CUDA, m) {
  m.impl("twice", twice);
}
