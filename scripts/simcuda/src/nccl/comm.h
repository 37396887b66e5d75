// Communicators: the ranks of a group, threads or processes, and the memory
// through which they talk.
#pragma once

#include "nccl_header.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace simnccl {

// Bytes that a rank passes on at a time.
constexpr size_t kChunk = size_t{256} << 10;

// This process has given the communicator up.
struct Aborted {};

// What a custom reduction multiplies each rank's numbers with.
struct Scale {
  const void* device = nullptr;  // where the number is; else it is `value`
  double value = 1;
};

// Memory that all ranks of a communicator map, zero at first: one slot per
// rank, and one mailbox per ordered pair of ranks.
class Shared {
 public:
  // Joins the other ranks; `name` is the communicator's own.
  Shared(const std::string& name, int ranks);
  ~Shared();
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  char* slot(int rank) const;

  // When a rank came to meetings, in virtual time: the last two, by turns. A
  // rank overwrites the older one when all have come to the newer one.
  struct Arrival {
    std::atomic<uint64_t> meeting;  // from 1
    int64_t time;
  };
  struct Place {
    std::atomic<int> process;
    Arrival arrivals[2];
  };
  Place& place(int rank) const;

  struct Mailbox {
    std::atomic<uint32_t> bytes;  // 0: empty
    char data[kChunk];
  };
  Mailbox& mailbox(int from, int to) const;

  // Waits for all ranks.
  void barrier();
  // Waits until the condition holds; throws Aborted.
  void wait(const std::function<bool()>& condition) const;
  // What this process has queued ends; that of others waits for it, for ever.
  void abort() {
    is_aborted_.store(true);
  }

 private:
  struct alignas(Place) Control {
    std::atomic<int> joined;
    std::atomic<int> arrived;
    std::atomic<uint32_t> generation;  // of the barrier
  };

  Control& control() const {
    return *static_cast<Control*>(memory_);
  }

  const int ranks_;
  size_t control_size_;
  size_t size_;
  void* memory_;
  std::atomic<bool> is_aborted_{false};
};

class Comm {
 public:
  // Waits until all ranks have come if they are not all this thread's.
  Comm(const std::string& name, int ranks, int rank);

  // Work of a communicator is done in the order in which it was issued,
  // whatever streams it is on.
  uint64_t take_ticket() {
    return tickets_.fetch_add(1);
  }
  void run_in_turn(uint64_t ticket, const std::function<void()>& work);

  // In virtual time: this rank has come to the next meeting of all ranks, and
  // returns when the last one came; the caller's own time if it was given up.
  int64_t meet(int64_t time);
  // Whether another rank is this process's.
  bool shares_process() const;

  ncclRedOp_t add_scale(Scale scale);
  void remove_scale(ncclRedOp_t reduction);
  Scale scale_of(ncclRedOp_t reduction);

  const std::string name;
  const int ranks;
  const int rank;
  int device = 0;
  int splits = 0;  // made of it so far
  Shared shared;

 private:
  std::atomic<uint64_t> tickets_{0};
  std::atomic<uint64_t> served_{0};
  uint64_t meetings_ = 0;
  std::mutex mutex_;
  std::map<int, Scale> scales_;
};

// A name for a communicator that no other has.
std::string fresh_name();

}  // namespace simnccl

struct ncclComm {
  std::shared_ptr<simnccl::Comm> comm;  // queued work refers to it too
};
