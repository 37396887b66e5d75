#pragma once

#include <c10/core/Storage.h>
#include <c10/macros/Export.h>
#include <c10/util/LargeModelSupport.h>

namespace at::cuda::lms {

// The C++ interface of Large Model Support, see Note [Large Model Support] in
// c10/util/LargeModelSupport.h. Python's torch.cuda.lms documents the meaning.
// Every function may be called from any thread; none needs the GIL.

// Starts or stops managing storages in this process. Stopping brings every
// storage back; throws c10::OutOfMemoryError, and stays on, if they do not fit.
TORCH_CUDA_CPP_API void set_enabled(bool enabled);
TORCH_CUDA_CPP_API bool is_enabled();

// Interception is per thread: set_enabled covers its caller, and threads that
// inherit its thread-local state.
TORCH_CUDA_CPP_API void enable_thread();

// Makes a storage resident for the rest of its life and returns its address.
TORCH_CUDA_CPP_API void* hold(const c10::Storage& storage);

// Keeps a storage resident, for work on the current stream of its device, while
// it exists. Does nothing where LMS is off.
class TORCH_CUDA_CPP_API PinGuard {
 public:
  // Throws c10::OutOfMemoryError.
  explicit PinGuard(const c10::Storage& storage);
  PinGuard(const PinGuard&) = delete;
  PinGuard& operator=(const PinGuard&) = delete;
  ~PinGuard();

  // Hands the pin to the caller, who must call its `unpin`; null if none.
  c10::lms::Context* release();

 private:
  c10::lms::Context* pinned_ = nullptr;
};

// Makes a storage one that LMS does not manage, until the next operator.
TORCH_CUDA_CPP_API void release(const c10::Storage& storage);

// Pages out everything that no operator needs.
TORCH_CUDA_CPP_API void reclaim_inactive();

} // namespace at::cuda::lms
