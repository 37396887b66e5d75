// Fills the blocks that PyTorch's caching allocator takes back, so that a use
// after free is seen as wrong numbers though the memory stays allocated.
//
// The fill is queued on the block's stream: work queued there before may still
// use the block, and whoever gets the block next uses it on the same stream, or
// after an event recorded there. The allocator reports a block used on further
// streams (record_stream) only when those are done with it.
#include <c10/cuda/CUDACachingAllocator.h>

#include <exception>

#include "../simcuda.h"

namespace {

using c10::CachingDeviceAllocator::TraceEntry;

// Runs under the allocator's lock; takes none but those of the stream.
void on_trace(const TraceEntry& entry) {
  if (entry.action_ == TraceEntry::FREE_COMPLETED) {
    simcudaPoison(
        reinterpret_cast<void*>(entry.addr_),
        entry.size_,
        static_cast<cudaStream_t>(entry.stream_),
        entry.device_);
  }
}

}  // namespace

// Call once CUDA is initialised: the allocator has no devices before. An
// allocator that cannot be traced (cudaMallocAsync's) is left alone.
extern "C" SIMCUDA_API void simopsAttachPoison() {
  if (simcudaPoisonLevel() < 2) {
    return;
  }
  try {
    c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker(on_trace);
  } catch (const std::exception&) {
  }
}
