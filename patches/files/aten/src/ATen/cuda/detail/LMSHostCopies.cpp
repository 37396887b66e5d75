#include <ATen/cuda/detail/LMSDevice.h>

#include <ATen/cuda/detail/LMSHostMemory.h>

#include <utility>

// The host's copies of storages: those that are paged out, and those that came
// back and have not been written since.

namespace at::cuda::lms {

// Memory for a host copy; empty if a wait is needed or there is none. Before
// this process takes more than its share, copies of resident bytes go: they
// only save a copy later.
HostPieces Device::host_memory(size_t bytes, HostMemory::Wait& wait) {
  using Claim = HostMemory::Claim;
  auto& pool = HostMemory::get();
  HostPieces host = pool.allocate(bytes, index_, Claim::kShare, wait);
  size_t dropped = 0;
  for (ManagedStorage* record : records_) {
    if (!host.empty() || wait.is_needed()) {
      return host;
    }
    if (record->clean) {
      drop_host_copy(record);
      dropped += record->bytes;
      if (dropped >= bytes) {
        host = pool.allocate(bytes, index_, Claim::kShare, wait);
      }
    }
  }
  return host.empty() && !wait.is_needed()
      ? pool.allocate(bytes, index_, Claim::kWhole, wait)
      : host;
}

// Copies into it and out of it may still be running.
void Device::free_host_copy(ManagedStorage* record) {
  HostMemory::get().free(
      std::exchange(record->host, {}),
      record->arrival ? record->arrival : record->write_back);
  record->write_back = nullptr;
}

void Device::drop_host_copy(ManagedStorage* record) {
  if (!record->host.empty() &&
      record->state == ManagedStorage::State::kResident) {
    free_host_copy(record);
    update_page(record);
  }
}

} // namespace at::cuda::lms
