// Fills the blocks that PyTorch's caching allocator hands out, so that a use
// after free, or of what was never written, is seen as wrong numbers though the
// memory stays allocated.
//
// The fill is queued on the block's stream, where its next owner works. Not
// when the block is freed: a program may free a block that another stream still
// reads, as long as it orders the block's stream behind that one before the
// block's next use. Autograd does so with gradients that cross streams.
#include <c10/cuda/CUDACachingAllocator.h>

#include <exception>

#include "../simcuda.h"

namespace {

using c10::cuda::CUDACachingAllocator::TraceEntry;

// Runs under the allocator's lock; takes none but those of the stream.
void on_trace(const TraceEntry& entry) {
  if (entry.action_ == TraceEntry::ALLOC) {
    simcudaPoison(reinterpret_cast<void*>(entry.addr_), entry.size_,
                  static_cast<cudaStream_t>(entry.stream_), entry.device_);
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
