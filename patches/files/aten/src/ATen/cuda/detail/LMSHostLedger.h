#pragma once

#include <ATen/cuda/detail/LMSHostRecords.h>

#include <cstddef>
#include <string>
#include <vector>

namespace at::cuda::lms {

// Note [Processes that share the host's memory]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// The processes of one user on one host write what they take into one file
// (Note [Records that processes share]), each how many bytes it has taken.
//
// Each has a fair share: the limit over the number of processes that have taken
// something, or that the launcher has started on this host if that is more
// (LOCAL_WORLD_SIZE says so). Beyond its share a process takes only what it
// cannot do without, so that nobody is refused what it needs for what merely
// saves another one time. What a process leaves of its share is there for
// others: the first stage of a pipeline needs more than the last.

// Bytes of host memory that this process and others of its user have taken.
// Not thread safe. This file includes no PyTorch.
class HostLedger {
 public:
  // Uses the first of the files that it can open or make; with none of them the
  // process counts alone.
  explicit HostLedger(const std::vector<std::string>& files);

  // What PYTORCH_LMS_HOST_LEDGER says: a file, or "none". By default one in
  // shared memory, or else in /tmp.
  static std::vector<std::string> default_files();

  bool is_shared() const {
    return records_.is_shared();
  }
  // Of the limit, or beyond it: for bytes that are nowhere else.
  enum class Claim { kShare, kWhole, kBeyond };
  // Takes so many bytes more, unless all processes together would then have
  // more than `limit`, or this one more than it claims. Waits a
  // while for other processes that are just doing the same.
  bool take(size_t bytes, size_t limit, Claim claim);
  void give_back(size_t bytes);
  // Whether `take` would do so now.
  bool has_room(size_t bytes, size_t limit, Claim claim) const;
  // Bytes that this process has taken.
  size_t taken() const {
    return taken_;
  }
  struct Others {
    size_t bytes = 0; // that they have taken
    size_t processes = 0; // that have taken some
  };
  Others others() const;

 private:
  void write_down();

  SharedRecords records_;
  size_t taken_ = 0;
  size_t launched_ = 0; // processes on this host, if the launcher says so
};

} // namespace at::cuda::lms
