#include <ATen/cuda/detail/LMSCudaCaptures.h>

#include <ATen/cuda/detail/LMSAllocator.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>

namespace at::cuda::lms {

bool may_be_captures() {
  const Allocator& layer = Allocator::get();
  return layer.routes_to_pools() || !layer.is_installed();
}

bool is_capturing() {
  return may_be_captures() &&
      c10::cuda::currentStreamCaptureStatusMayInitCtx() !=
      c10::cuda::CaptureStatus::None;
}

bool is_captured(cudaStream_t stream) {
  if (!may_be_captures()) {
    return false;
  }
  auto status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) != cudaSuccess) {
    (void)cudaGetLastError();
    return true; // the default stream, beside a capture that it would be part
                 // of
  }
  return status != cudaStreamCaptureStatusNone;
}

} // namespace at::cuda::lms
