#pragma once

#include <ATen/cuda/detail/LMSCoreDisk.h>
#include <ATen/cuda/detail/LMSHostLedger.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>

namespace at::cuda::lms {

// Note [A file without a name]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// What is on disk is in one file of the process, in the folder that the user
// has named and nowhere else. It has no name, or loses it at once where the
// file system makes none without: so nobody else opens it, and the kernel frees
// it when the process ends, however it ends. It is written and read without the
// kernel's cache (O_DIRECT), which would take the memory that is short, and
// copy all bytes once more. A file system that cannot do so is refused.

// The file of this process on one disk. Thread safe; none of its functions
// calls CUDA.
class Disk final : public std::enable_shared_from_this<Disk> {
 public:
  // Disks want addresses, offsets and sizes to be multiples of this.
  static constexpr size_t kAlignment = 4096;

  struct Stats {
    size_t limit = 0; // bytes, of all processes of the user
    size_t used = 0; // bytes that are taken by this one
    size_t others = 0; // bytes that others have reserved
  };

  // Tries the disk out. Throws std::runtime_error that says what is wrong.
  Disk(std::string folder, size_t limit);
  ~Disk();
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  const std::string& folder() const {
    return folder_;
  }
  // Null if the limit is reached, or a write has failed before.
  std::shared_ptr<DiskSpace> allocate(size_t bytes);
  // Reads or writes its bytes, and waits for it. The host's memory is larger up
  // to a multiple of kAlignment.
  static void run(DiskTransfer& transfer) noexcept;
  bool is_usable();
  Stats stats();

  // Where storages go from now on; null: nowhere. What is on another disk stays
  // there until it is written to or dies.
  static void choose(std::shared_ptr<Disk> disk);
  static std::shared_ptr<Disk> chosen();

 private:
  struct Space;

  bool grow(size_t bytes);
  void give_back(const HostPieces& pieces);
  std::string error_of(bool is_write, int error) const;

  const std::string folder_;
  const size_t limit_;
  int file_ = -1;
  std::mutex mutex_;
  HostLedger ledger_;
  HostRanges free_; // as if the file were memory at kFirst
  size_t end_ = 0; // of the file, bytes
  size_t used_ = 0;
  bool has_failed_ = false; // a write
};

} // namespace at::cuda::lms
