#pragma once

#include "link.h"
#include "trace.h"

#include <ATen/cuda/detail/LMSCorePageTable.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <vector>

namespace lms_replay {

// Nothing, where the number of a storage, a copy or an operator is expected.
constexpr size_t kNone = std::numeric_limits<size_t>::max();

// A moment of virtual time: the later of a time and of the begin or the end of
// a copy, which may not be known yet.
struct Moment {
  Time time = 0;
  CopyId copy = kNone;
};

// Note [Timeline]
// ~~~~~~~~~~~~~~~
// What happened in a replay, and when, for people to look at: the world and the
// simulation tell of it while they play the trace, and nothing here has any
// effect on them. Who asks for it gets the part between two times.
//  - "Used for": the operator that was being prepared, or had been launched
//    last, when the pager decided; a number of `operators`.
//  - Memory is taken from the time on at which the compute stream, or the copy
//    that fills it, gets to it; and until the copy out of it has ended, or the
//    compute stream has come to where the pager gave it back.

class Timeline {
 public:
  explicit Timeline(const Trace& trace);

  // --- what the world and the simulation tell ---

  void began_step(Time now);
  void ended(Time now);

  // An operator ran; `made`: again, for the bytes of this storage.
  void ran(size_t op, Interval when, size_t made);
  // The compute stream stood still before the next operator.
  void waited(size_t cause, Interval when, CopyId copy);
  // `memory`: the target within the device.
  void copied(
      const at::cuda::lms::PageEntry& page,
      Direction direction,
      bool is_ahead,
      const void* memory,
      const at::cuda::lms::HostPieces* host);
  // Between the host's memory and the disk.
  void transferred(const at::cuda::lms::DiskTransfer& transfer, Interval when);
  // `room`: bytes of memory that an operator wants now; 0: the plan wants it.
  void left(
      const at::cuda::lms::PageEntry& page,
      at::cuda::lms::Departure how,
      Time now,
      size_t room);
  void took(size_t storage, const void* memory, Time now);
  void gave_back(const void* memory, Time now);
  void took_small(size_t storage, Time now);
  void gave_back_small(size_t storage, Time now);
  void gave_back_host(const at::cuda::lms::HostPieces& host, Moment when);

  // --- what is asked ---

  // Prints one JSON object, of what lies in a step: of all of the trace where
  // that has none, and of the last step if there is no such. Times are
  // nanoseconds from its beginning. `link` has ended all its copies.
  void print(const Link& link, size_t step) const;

 private:
  struct Ran {
    size_t op;
    Interval when;
    size_t made;
  };
  struct Waited {
    size_t cause;
    Interval when;
    CopyId copy;
    size_t before; // the operator
  };
  struct Copied {
    size_t storage;
    Direction direction;
    bool is_ahead;
    size_t used_for;
    size_t room = 0;
    bool leaves = false; // the device, by this copy
  };
  struct Transferred {
    size_t storage;
    bool is_write;
    Interval when;
  };
  struct Dropped {
    size_t storage;
    Time when;
    size_t room;
    size_t used_for;
  };
  struct Stay {
    size_t storage;
    Moment begin;
    Moment end{kUnknown, kNone};
  };

  class Printer;
  size_t steps() const;

  std::vector<size_t> lines_; // in the trace, by operator
  std::vector<Time> steps_; // when they began
  Time end_ = 0;
  std::vector<Ran> operators_;
  std::vector<Waited> waits_;
  std::vector<Copied> copies_; // all of the link's, in order
  std::vector<Transferred> transfers_;
  std::vector<Dropped> drops_;
  std::vector<Stay> on_device_;
  std::vector<Stay> on_host_;
  std::map<const void*, size_t> device_stays_; // open ones, by address
  std::map<const void*, size_t> host_stays_;
  std::map<size_t, size_t> small_stays_; // by storage
};

} // namespace lms_replay
