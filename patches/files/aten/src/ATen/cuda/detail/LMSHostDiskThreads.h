#pragma once

#include <ATen/cuda/detail/LMSHostRanges.h>

#include <sys/types.h>

#include <vector>

namespace at::cuda::lms {

// Bytes of the host's memory, and where they are in a file.
struct DiskRange {
  HostRange host;
  off_t offset;
};

// Writes the ranges to the file, or reads them, by several threads at once:
// disks are fast only with many requests in flight. Waits until all is done.
// Returns 0, or the errno of the first call that failed. Any thread may call
// it, several at a time.
int transfer_bytes(
    int file,
    const std::vector<DiskRange>& ranges,
    bool is_write);

} // namespace at::cuda::lms
