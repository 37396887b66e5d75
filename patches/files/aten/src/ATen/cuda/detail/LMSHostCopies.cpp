#include <ATen/cuda/detail/LMSDevice.h>

#include <ATen/cuda/detail/LMSHostMemory.h>

// The host's copies of storages: those that are paged out, and those that came
// back and have not been written since.

namespace at::cuda::lms {

// Memory for a host copy; null if there is none. Before this process takes more
// than its share, copies of resident bytes go: they only save a copy later.
void* Device::host_memory(size_t bytes) {
  using Claim = HostMemory::Claim;
  auto& pool = HostMemory::get();
  if (void* host = pool.allocate(bytes, index_, Claim::kShare)) {
    return host;
  }
  size_t dropped = 0;
  for (ManagedStorage* record : records_) {
    if (!record->clean) {
      continue;
    }
    drop_host_copy(record);
    dropped += record->bytes;
    if (dropped >= bytes) {
      if (void* host = pool.allocate(bytes, index_, Claim::kShare)) {
        return host;
      }
    }
  }
  return pool.allocate(bytes, index_, Claim::kWhole);
}

// Copies into it and out of it may still be running.
void Device::free_host_copy(ManagedStorage* record) {
  HostMemory::get().free(
      record->host, record->arrival ? record->arrival : record->departure);
  record->host = nullptr;
  record->departure = nullptr;
}

void Device::drop_host_copy(ManagedStorage* record) {
  if (record->host && record->state == ManagedStorage::State::kResident) {
    free_host_copy(record);
    update_page(record);
  }
}

} // namespace at::cuda::lms
