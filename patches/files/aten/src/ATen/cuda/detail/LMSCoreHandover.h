#pragma once

#include <ATen/cuda/detail/LMSCoreHandles.h>

#include <cstddef>
#include <cstdint>
#include <map>

namespace at::cuda::lms {

// Note [Handing memory over]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~
// Memory that is being copied from may go back to the caching allocator before
// the copy is done: only its next owner has to wait, and on the device. Such a
// range is noted here with the events of that work. When the allocator hands
// out a part of it (LMSDeviceMirror sees that), the part's events are given to
// the request: an operator's stream waits for them, a page-in lets only its own
// copy wait. What the range's home stream itself has queued needs no event: an
// allocation is used on that stream, and a page-in waits for it.
//
// The same goes for a storage that dies while work on other streams than its
// home stream uses it. A program orders that work before what it queues on the
// home stream later, but a page-in may use the memory earlier than that.
//
// The allocator may also give the range back to the driver. cudaFree waits for
// the device; expandable segments are unmapped without that, so for them the
// home stream waits for copies at once, and nothing is noted.

// Not thread safe.
class Handover {
 public:
  // The range is about to be freed though the events have not happened. Adds to
  // what was put there before. Null events are left out.
  void put(uintptr_t address, size_t size, const Events& events);
  // The range has been allocated: what its owner must wait for. Unique events.
  Events take(uintptr_t address, size_t size);
  // All that somebody may have to wait for. Unique events.
  Events pending() const;
  // The events have happened: nobody has to wait for them any more.
  void forget(const Events& events);

 private:
  struct Range {
    size_t size;
    Events events;
  };
  std::map<uintptr_t, Range> ranges_; // by address, disjoint
};

} // namespace at::cuda::lms
