// Kernels like PyTorch's own for sparse and nested tensors: built against
// upstream's headers, they take the addresses of what these consist of.

#include <ATen/ATen.h>
#include <cuda_runtime_api.h>
#include <torch/library.h>

#include <vector>

namespace {

std::vector<float> read(const void* address, int64_t count) {
  std::vector<float> numbers(static_cast<size_t>(count));
  TORCH_CHECK(
      cudaDeviceSynchronize() == cudaSuccess &&
      cudaMemcpy(
          numbers.data(),
          address,
          numbers.size() * sizeof(float),
          cudaMemcpyDeviceToHost) == cudaSuccess);
  return numbers;
}

void write(void* address, const std::vector<float>& numbers) {
  TORCH_CHECK(
      cudaMemcpy(
          address,
          numbers.data(),
          numbers.size() * sizeof(float),
          cudaMemcpyHostToDevice) == cudaSuccess);
}

void double_values(void* to, const void* from, int64_t count) {
  auto numbers = read(from, count);
  for (float& number : numbers) {
    number *= 2;
  }
  write(to, numbers);
}

at::Tensor twice(const at::Tensor& values) {
  at::Tensor result = at::empty_like(values);
  double_values(
      result.data_ptr<float>(), values.data_ptr<float>(), values.numel());
  return result;
}

at::Tensor values_of(const at::Tensor& tensor) {
  return tensor.layout() == at::kSparse ? tensor._values() : tensor.values();
}

at::Tensor twice_sparse(const at::Tensor& tensor) {
  return at::_sparse_coo_tensor_unsafe(
      tensor._indices().clone(), twice(tensor._values()), tensor.sizes());
}

at::Tensor twice_rows(const at::Tensor& tensor) {
  return at::_sparse_csr_tensor_unsafe(
      tensor.crow_indices().clone(),
      tensor.col_indices().clone(),
      twice(tensor.values()),
      tensor.sizes(),
      tensor.options());
}

at::Tensor& double_sparse(at::Tensor& tensor) {
  const at::Tensor values = values_of(tensor);
  double_values(
      values.data_ptr<float>(), values.data_ptr<float>(), values.numel());
  return tensor;
}

at::Tensor& double_storage(at::Tensor& tensor) {
  double_values(
      tensor.storage().mutable_data(),
      tensor.storage().data(),
      static_cast<int64_t>(tensor.storage().nbytes() / sizeof(float)));
  return tensor;
}

// The first of the dense numbers, plus the values.
at::Tensor add_sparse(const at::Tensor& dense, const at::Tensor& tensor) {
  const at::Tensor values = values_of(tensor);
  auto numbers = read(dense.data_ptr<float>(), values.numel());
  const auto added = read(values.data_ptr<float>(), values.numel());
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] += added[i];
  }
  at::Tensor result = at::empty_like(values);
  write(result.data_ptr<float>(), numbers);
  return result;
}

} // namespace

TORCH_LIBRARY(layouts, m) {
  m.def("twice(Tensor tensor) -> Tensor");
  m.def("double_(Tensor(a!) tensor) -> Tensor(a!)");
  m.def("add(Tensor dense, Tensor tensor) -> Tensor");
}

TORCH_LIBRARY_IMPL(layouts, CUDA, m) {
  m.impl("twice", twice);
}

TORCH_LIBRARY_IMPL(layouts, SparseCUDA, m) {
  m.impl("twice", twice_sparse);
  m.impl("double_", double_sparse);
  m.impl("add", add_sparse);
}

TORCH_LIBRARY_IMPL(layouts, SparseCsrCUDA, m) {
  m.impl("twice", twice_rows);
  m.impl("double_", double_sparse);
  m.impl("add", add_sparse);
}

TORCH_LIBRARY_IMPL(layouts, NestedTensorCUDA, m) {
  m.impl("double_", double_storage);
}
