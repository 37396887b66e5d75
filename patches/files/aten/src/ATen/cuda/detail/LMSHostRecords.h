#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace at::cuda::lms {

// Note [Records that processes share]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// The processes of one user on one host write what others have to know of them
// into one file. It is an array of records, of so many 8-byte numbers each. The
// first one says what the file is, and its lock (of fcntl) is the mutex of the
// file; each process holds the lock of one other record for as long as it
// lives. A record whose lock nobody holds counts for nothing and is free to be
// used again.
//
// These locks belong to the process: the kernel drops them when it ends,
// however it ends, and a child made by fork does not have them. So nothing is
// ever taken for ever, and no process number is compared. The file lives in
// memory that processes share; containers that do not share it, and other
// users, count apart. Where there is no such file the process counts alone.

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

// The file, and this process's record in it. Not thread safe. This file
// includes no PyTorch.
class SharedRecords {
 public:
  static constexpr size_t kMostNumbers = 8;

  // Uses the first of the files that it can open or make. `magic` tells files
  // of different use apart; `numbers` is how many a record has.
  SharedRecords(
      const std::vector<std::string>& files,
      uint64_t magic,
      size_t numbers);
  ~SharedRecords();
  SharedRecords(const SharedRecords&) = delete;
  SharedRecords& operator=(const SharedRecords&) = delete;

  // False where there is no file. After an error too: the others go on to count
  // what was last written.
  bool is_shared() const {
    return is_shared_;
  }

  // While one of these lives, no other process has one of this file, unless it
  // had to go on without.
  class Turn {
   public:
    explicit Turn(SharedRecords& records);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    const int file_;
    bool is_held_ = false;
  };

  // Finds a record for this process, if it has none yet, and writes the numbers
  // to it: whose it was may have ended with others.
  void claim(const uint64_t* numbers);
  // Writes to the record that it has; does nothing if it has none.
  void write(const uint64_t* numbers);
  // Calls the function with the numbers of each other process that lives.
  void visit_others(const std::function<void(const uint64_t*)>& visit) const;

 private:
  size_t bytes() const {
    return numbers_ * sizeof(uint64_t);
  }

  const uint64_t magic_;
  const size_t numbers_; // of a record
  int file_ = -1; // a descriptor; -1 if there is no file
  bool is_shared_ = false;
  bool is_stuck_ = false; // somebody keeps the mutex
  size_t own_ = 0; // the record of this process; 0: none yet
};

} // namespace at::cuda::lms
