#pragma once

#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <ATen/cuda/detail/LMSCoreHandles.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace at::cuda::lms {

class Device;
struct ManagedStorage;

// Note [Lending memory to other streams]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A segment belongs to one stream, so an operator of another one may run out
// of memory though much is free. It gets memory of that segment then: its
// stream waits for what is queued on the segment's, which may still use the
// memory. When it goes back, its next owner waits for the borrower: a storage's
// record knows its users, and of other memory, such as an operator's scratch,
// the loan is noted until it is freed.
//
// The home stream of such a storage is the segment's. Once LMS is off, the
// allocator must not give its memory away while the borrower uses it: it is
// told so as of a stream named by Tensor.record_stream.

// Called without the mutex, except where noted.
class Loans {
 public:
  explicit Loans(Device& device) : device_(device) {}

  // The stream whose memory a request shall get: that of the one segment where
  // it has taken what others would need.
  cudaStream_t lender_for(size_t bytes, cudaStream_t stream);
  // That of segments which nobody gets but who asks for it: what is allocated
  // there stays. No work is queued on it.
  cudaStream_t stream_apart();
  // The streams that have memory, but for one.
  std::vector<cudaStream_t> other_streams(cudaStream_t stream);
  // The memory is the lender's, for work on another stream, which has to wait
  // for what is added to `pending`.
  void lend(
      const void* memory,
      cudaStream_t lender,
      cudaStream_t borrower,
      Events& pending);

  // With the mutex: a record sees to its memory from now on.
  void take_over(ManagedStorage* record);
  // With the mutex: the memory is about to be free. Its next owner waits for
  // the borrower.
  void end(uintptr_t address, size_t bytes);

 private:
  struct Loan {
    cudaStream_t borrower;
    bool is_apart; // see stream_apart
  };

  Device& device_;
  std::map<uintptr_t, Loan> loans_; // by address
  std::optional<c10::cuda::CUDAStream> apart_; // unless nobody has asked for it
};

} // namespace at::cuda::lms
