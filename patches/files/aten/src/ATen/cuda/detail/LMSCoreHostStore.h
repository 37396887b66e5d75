#pragma once

#include <ATen/cuda/detail/LMSCorePageTable.h>

namespace at::cuda::lms {

// The host's copies of a device's pages: of those that are paged out, and of
// those that came back and have not been written since.
class HostStore {
 public:
  HostStore(World& world, const PageTable& pages)
      : world_(world), pages_(pages) {}

  // Memory for a host copy; empty if a wait is needed or there is none. Before
  // this process takes more than its share, copies of resident bytes go: they
  // only save a copy later.
  HostPieces allocate(size_t bytes, HostMemory::Wait& wait);
  // The page's copy goes. Copies into it and out of it may still be running,
  // but for those to disk.
  void free(PageEntry* page);
  // The same, if the bytes are on the device: they are about to be written, or
  // host memory is short.
  void drop(PageEntry* page);

 private:
  World& world_;
  const PageTable& pages_;
};

} // namespace at::cuda::lms
