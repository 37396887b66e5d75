#pragma once

#include <ATen/cuda/detail/LMSCoreHandles.h>
#include <ATen/cuda/detail/LMSHostRanges.h>

#include <cstddef>
#include <memory>
#include <string>

namespace at::cuda::lms {

struct PageEntry;

// A place on disk for the bytes of one storage, which is free again with the
// object.
struct DiskSpace {
  DiskSpace() = default;
  DiskSpace(const DiskSpace&) = delete;
  DiskSpace& operator=(const DiskSpace&) = delete;
  virtual ~DiskSpace() = default;
};

// A copy between the host's memory and a disk.
struct DiskTransfer {
  enum class Kind { kRead, kWrite }; // from the disk, to the disk
  Kind kind;
  size_t bytes;
  HostPieces host;
  std::shared_ptr<DiskSpace> space;
  Event end; // null until it is queued
  // Why it failed, empty if it has not: once the end has happened.
  std::string error;
  bool has_failed = false; // and that has been seen
  // Whose bytes they are. Null: nobody's any more. Then the memory is the
  // transfer's own, and what reads it may be running until `ready`.
  PageEntry* page = nullptr;
  Event ready;
};

} // namespace at::cuda::lms
