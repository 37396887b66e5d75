#include "alias.h"

#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/COW.h>

#include <utility>

namespace simcuda {

at::Tensor with_storage(const at::Tensor& tensor, c10::Storage storage,
                        c10::DispatchKey backend) {
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(backend), tensor.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_storage_offset(tensor.storage_offset());
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    impl->set_wrapped_number(true);
  }
  made._set_conj(tensor.is_conj());
  made._set_neg(tensor.is_neg());
  return made;
}

at::Tensor Aliases::of(const at::Tensor& tensor) {
  if (!tensor.is_cuda()) {
    return tensor;
  }
  const c10::Storage& storage = tensor.storage();
  c10::Storage& alias = storages_[storage.unsafeGetStorageImpl()];
  if (!alias) {
    // Resizable, as an operator may resize its `out` argument: the alias then
    // gets CPU memory of its own, and was_resized tells.
    alias = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), storage.nbytes(),
        c10::DataPtr(const_cast<void*>(storage.data()), c10::Device(c10::kCPU)),
        c10::GetCPUAllocator(),
        /*resizable=*/true);
  }
  return with_storage(tensor, alias, c10::DispatchKey::CPU);
}

void own_bytes(const at::Tensor& tensor) {
  if (tensor.is_cuda() && tensor.has_storage() &&
      c10::impl::cow::is_cow_data_ptr(tensor.storage().data_ptr())) {
    tensor.storage().mutable_data();
  }
}

bool was_resized(const at::Tensor& tensor, const at::Tensor& alias) {
  return alias.sizes() != tensor.sizes() ||
         alias.strides() != tensor.strides() ||
         alias.storage().data() != tensor.storage().data();
}

size_t extent(const at::Tensor& tensor) {
  return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(),
                                          tensor.itemsize());
}

}  // namespace simcuda
