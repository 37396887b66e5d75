#pragma once

#include <ATen/cuda/detail/LMSCoreHandover.h>
#include <c10/core/Device.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <unordered_set>

namespace at::cuda::lms {

// Note [External streams]
// ~~~~~~~~~~~~~~~~~~~~~~~
// PyTorch's own streams last as long as the process: any thread can record an
// event on one, whenever it is needed. A stream of another library
// (torch.cuda.ExternalStream) may be destroyed while storages still name it,
// and a new stream may have its handle then. The per-thread default stream is
// another one on each thread, with one handle for all.
//
// So an external stream is touched by a thread only while it is that thread's
// current stream. After each operator on it an event is recorded, and this is
// what others wait for. Before that, the stream waits for the last such event
// of its handle, which may be another stream's: so the last one is enough.
//
// What a program does there with an address that it has taken LMS does not see.
// If such a storage dies when the stream is not the current one, its memory is
// in doubt: it is free only after the host has waited for the device. That is
// done when memory is next asked for, since storages may die under the GIL,
// which a thread may need that the device waits for.

// The streams of one device that work on storages. Guarded by the mutex of the
// device's pager, except where noted.
class Streams {
 public:
  explicit Streams(c10::DeviceIndex device) : device_(device) {}

  // The program names the stream. Until it has named one of PyTorch's own, that
  // counts as external.
  void meet(c10::cuda::CUDAStream stream);
  void meet_current();
  bool is_external(cudaStream_t stream) const;
  // The same, and the calling thread may not touch it.
  bool is_out_of_reach(cudaStream_t stream) const;

  // Those that the caching allocator can be told of.
  template <class List> List without_external(List streams) const {
    const auto is_gone = [this](c10::cuda::CUDAStream stream) {
      return is_external(stream.stream());
    };
    streams.erase(
        std::remove_if(streams.begin(), streams.end(), is_gone), streams.end());
    return streams;
  }

  // Work has been queued on the stream, which may be destroyed as soon as the
  // caller lets it. Does nothing for a stream that is not external.
  void note_work(cudaStream_t stream) noexcept;
  // The end of what is queued so far on the stream, as far as LMS can know.
  // Nothing for one that is being captured: that began when it was idle.
  Events queued(cudaStream_t stream) noexcept;
  // The same of every stream that the calling thread may touch, and what is
  // known of the others.
  Events all_queued() noexcept;

 private:
  // By the thread that queued the work, 0 where that makes no difference.
  using Ends = std::map<uint64_t, Event>;

  const c10::DeviceIndex device_;
  std::unordered_set<cudaStream_t> own_; // of PyTorch, that the program named
  std::map<cudaStream_t, Ends> ends_; // of external streams, by handle
};

} // namespace at::cuda::lms
