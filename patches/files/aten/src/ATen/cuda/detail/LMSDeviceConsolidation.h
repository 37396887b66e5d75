#pragma once

#include <ATen/cuda/detail/LMSCoreLayout.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace at::cuda::lms {

class Device;

// Note [One segment]
// ~~~~~~~~~~~~~~~~~~
// The caching allocator gets memory from the driver in segments as large as the
// requests of the moment, and a block never spans two of them. While a model
// fits that hardly matters. Once storages have to be evicted, it does: a
// request that no segment can serve needs a whole segment to be given back, and
// cudaFree blocks the host until the device is idle. So when memory first runs
// short, everything evictable is evicted, and the device's memory is taken anew
// as one segment. It costs a page-out of the model, once, and once more when
// the program has given the segment back by emptying the cache or the limit has
// changed.
//
// A part is left for the segments of small storages. While the one segment is
// empty they may outgrow their part: the allocator then gives it back, and all
// is taken anew once large storages run short. Where that goes on (the backward
// pass uses large storages, the optimizer as many small ones), everything would
// be evicted in each iteration. So after kMostLost times memory stays as it
// comes, until there is a new limit.
//
// A segment belongs to one stream. So it is that of the stream which has most
// of the memory, as the one that computes where weights are sharded: the others
// collect weights and gradients. They are lent what they need (Note [Lending
// memory to other streams]); with segments of their own, some would have to go
// back in each iteration. Programs whose streams share the memory more evenly
// are left alone, and those with expandable segments, which are one range of
// addresses already.

// How much of the memory a piece takes that is made for an operator.
enum class Gather {
  kRoomy, // leaves as much for small storages as programs usually need
  kTight, // leaves 1/64 of the limit for them
};

// Called without the mutex, except where noted.
class Consolidation {
 public:
  explicit Consolidation(Device& device) : device_(device) {}

  // Between operators: if memory has run short since this was last asked.
  void take_place() noexcept;
  // Pages out everything evictable and makes one free piece of the memory
  // in which work on the stream gets its results. See Note [Gathering an
  // operator's storages].
  void gather(cudaStream_t stream, Gather how);
  // Bytes that small storages can take on the device together.
  size_t room_for_small();

  bool has_one_segment();
  // With the mutex: null if there is none.
  const Segment* one_segment();
  // With the mutex. A segment goes back to the driver, for instance because the
  // program empties the cache or the limit sank. If it was the one, there may
  // be another.
  void note_lost_segment(uintptr_t address);
  // With the mutex. There is a new limit: there may be room for a larger one.
  void start_anew();

 private:
  std::optional<cudaStream_t> stream();
  void take_one_segment(cudaStream_t stream);
  void take_tight_segment(cudaStream_t stream);
  bool has_expandable_segments();
  size_t size_of_one_segment(size_t small);
  void note_one_segment(size_t bytes, size_t small);
  void forget(); // with the mutex

  Device& device_;
  bool is_done_ = false; // or tried
  uintptr_t one_segment_ = 0; // its address; 0: there is none
  int lost_to_requests_ = 0; // how often, under this limit
};

} // namespace at::cuda::lms
