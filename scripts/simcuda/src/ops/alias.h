// CPU tensors over the memory of CUDA tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <unordered_map>

namespace simcuda {

// Makes the aliases of one operator call. Tensors that share a storage have
// aliases that share one. The address is read when the alias is made and is not
// owned: the device's stream order keeps the memory valid while the work on it
// is queued, also when the storage gets another address in the meantime.
class Aliases {
 public:
  // CPU tensors are returned as they are.
  at::Tensor of(const at::Tensor& tensor);

 private:
  std::unordered_map<const c10::StorageImpl*, c10::Storage> storages_;
};

// A tensor like `tensor` in sizes, strides and bits, on another storage.
at::Tensor with_storage(const at::Tensor& tensor, c10::Storage storage,
                        c10::DispatchKey backend);

// Gives a CUDA tensor's storage bytes of its own if it shares them with a lazy
// clone, as a kernel does that takes an address to write to.
void own_bytes(const at::Tensor& tensor);

// True when an operator has given `alias` other sizes or other memory.
bool was_resized(const at::Tensor& tensor, const at::Tensor& alias);

// Bytes from the first to the last element.
size_t extent(const at::Tensor& tensor);

}  // namespace simcuda
