#pragma once

#include <cuda_runtime_api.h>

namespace at::cuda::lms {

// Note [CUDA graphs]
// ~~~~~~~~~~~~~~~~~~
// A graph runs later, as often as the program likes, on any stream, and reads
// and writes the addresses that its capture has seen. So LMS steps aside in a
// capture: it copies nothing and tracks nothing that the capture makes, which
// lies in a private pool. What the capture touches is held, whatever its size,
// and must be on the device; if it is still arriving, the host waits, since the
// captured stream cannot. When such a storage dies, a replay may be using it on
// a stream that LMS does not know: its memory is in doubt, see Note [External
// streams].
//
// Other threads page meanwhile. CUDA takes their queries and waits for a
// mistake that ends the capture, unless it is told that they are none of it.

// True while the calling thread's current stream is being captured.
bool is_capturing();

// True if the stream is being captured: what is queued on it does not run, and
// an event on it would be the capture's. The device must be current.
bool is_captured(cudaStream_t stream);

// True while a stream of some device may be captured, as always while LMS is
// off: then the host must not wait for a whole device.
bool may_be_captures();

// While one of these lives, the calling thread's calls that ask or wait for the
// device have nothing to do with what is captured.
class BesideCaptures {
 public:
  BesideCaptures() {
    exchange();
  }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;
  ~BesideCaptures() {
    exchange();
  }

 private:
  void exchange() {
    (void)cudaThreadExchangeStreamCaptureMode(&mode_); // never fails
  }

  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

} // namespace at::cuda::lms
