#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace at::cuda::lms {

// Note [Processes that share the host's memory]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// The processes of one user on one host write what they take into one file.
// It is an array of 8-byte numbers. The first one says that the file is a
// ledger, and its lock (of fcntl) is the mutex of the file; each process holds
// the lock of one other number for as long as it lives, and keeps there how
// many bytes it has taken. A number whose lock nobody holds counts for nothing
// and is free to be used again.
//
// These locks belong to the process: the kernel drops them when it ends,
// however it ends, and a child made by fork does not have them. So nothing is
// ever taken for ever, and no process number is compared. The file lives in
// memory that processes share; containers that do not share it, and other
// users, count apart. Where there is no such file the process counts alone.
//
// Each has a fair share: the limit over the number of processes that have taken
// something, or that the launcher has started on this host if that is more
// (LOCAL_WORLD_SIZE says so). Beyond its share a process takes only what it
// cannot do without, so that nobody is refused what it needs for what merely
// saves another one time. What a process leaves of its share is there for
// others: the first stage of a pipeline needs more than the last.

// Note [A ledger that others cannot spoil]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A name may lead anywhere: somebody sets the variable to a file of data, or
// leaves a link in a folder that all can write to. So a file is written to only
// if it is a regular file of the user's with one name, no larger than a ledger
// can be, and begins with the magic number. A new one gets its name when it
// has that. Nothing is ever written to a file that was empty.
//
// A process can be stopped while it holds the mutex (SIGSTOP, a frozen
// container). Who waits for it looks whether it is stopped, and after a while
// goes on without the mutex. It counts what all have written down, as ever; the
// limit is exceeded only by what several take at the same moment. From then on
// it does not wait, until it gets the mutex again.

// Bytes of host memory that this process and others of its user have taken.
// Not thread safe. This file includes no PyTorch.
class HostLedger {
 public:
  // Uses the first of the files that it can open or make; with none of them the
  // process counts alone.
  explicit HostLedger(const std::vector<std::string>& files);
  ~HostLedger();
  HostLedger(const HostLedger&) = delete;
  HostLedger& operator=(const HostLedger&) = delete;

  // What PYTORCH_LMS_HOST_LEDGER says: a file, or "none". By default one in
  // shared memory, or else in /tmp.
  static std::vector<std::string> default_files();

  bool is_shared() const {
    return is_shared_;
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
  bool find_slot();

  int file_ = -1; // a descriptor; -1 if there is no file
  // After an error the process counts alone, and the others go on to count what
  // it last wrote.
  bool is_shared_ = false;
  bool is_stuck_ = false; // somebody keeps the mutex
  size_t slot_ = 0; // where this process writes; 0: nowhere yet
  size_t taken_ = 0;
  size_t launched_ = 0; // processes on this host, if the launcher says so
};

} // namespace at::cuda::lms
