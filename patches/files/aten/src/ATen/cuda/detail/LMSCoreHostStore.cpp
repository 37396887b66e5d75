#include <ATen/cuda/detail/LMSCoreHostStore.h>

#include <utility>

namespace at::cuda::lms {

HostPieces HostStore::allocate(size_t bytes, HostMemory::Wait& wait) {
  using Claim = HostMemory::Claim;
  HostPieces host = world_.allocate_on_host(bytes, Claim::kShare, wait);
  size_t dropped = 0;
  for (PageEntry* page : pages_.all()) {
    if (!host.empty() || wait.is_needed()) {
      return host;
    }
    if (page->clean && !page->host.empty() && !page->transfer) {
      drop(page);
      dropped += page->bytes;
      if (dropped >= bytes) {
        host = world_.allocate_on_host(bytes, Claim::kShare, wait);
      }
    }
  }
  return host.empty() && !wait.is_needed()
      ? world_.allocate_on_host(bytes, Claim::kWhole, wait)
      : host;
}

void HostStore::free(PageEntry* page) {
  world_.free_on_host(
      std::exchange(page->host, {}),
      page->write_back ? page->write_back : page->arrival);
  page->write_back = nullptr;
  page->written_back_at = 0;
}

void HostStore::drop(PageEntry* page) {
  if (!page->host.empty() && page->state == PageEntry::State::kResident) {
    free(page);
    page->update();
  }
}

} // namespace at::cuda::lms
