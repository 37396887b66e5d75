#pragma once

#include <ATen/cuda/detail/LMSCoreHandover.h>
#include <ATen/cuda/detail/LMSCoreSharers.h>
#include <ATen/cuda/detail/LMSHostRecords.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>

namespace at::cuda::lms {

class Device;

// What this process has to do with others on its card: it asks them for memory
// and gives way to them, see Note [Processes that share a card]. Called without
// the device's mutex, except where noted.
//
// One thread, for all devices, looks at the others every now and then. To give
// way takes long and has a thread of its own, so that others see meanwhile that
// this process is alive.
class Sharing {
 public:
  explicit Sharing(Device& device) : device_(device) {}

  // Opens the card's file, unless that is done.
  void open();
  // The same, and has the others looked at from now on.
  void start();
  // The process is ending: no thread uses CUDA from then on.
  static void stop_all();

  // Counts as long as it lives.
  class Counted {
   public:
    explicit Counted(std::atomic<int>& count) : count_(count) {
      count_.fetch_add(1, std::memory_order_relaxed);
    }
    ~Counted() {
      count_.fetch_sub(1, std::memory_order_relaxed);
    }
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;

   private:
    std::atomic<int>& count_;
  };
  // As long as it is counted this process is busy, although no operator comes
  // to its end; or gives way, so that others may hope. With or without the
  // mutex.
  Counted working() {
    return Counted(working_);
  }
  Counted giving_way() {
    return Counted(givers_);
  }
  // With the mutex: an operator has run.
  void note_operator() {
    ++operators_;
  }
  // With the mutex: the caching allocator has taken a segment, and has so many
  // bytes now. Others see it at once: to one that finds no memory, what nobody
  // has written down is not to be had.
  void note_growth(size_t reserved);

  // Whether there were others when they were last looked at.
  bool are_others() const {
    return are_others_.load(std::memory_order_relaxed);
  }
  // The others, now. With or without the mutex.
  Sharers others();
  // How long others are waited for, milliseconds: while nobody has anything to
  // give, and while nobody gives way.
  struct Patience {
    uint64_t with_none;
    uint64_t with_others;
  };
  // The first is two looks of the others: what they have written down may be
  // old, or they are just taking their memory anew.
  static constexpr Patience kUsual{200, 2'000};
  static constexpr Patience kBeforeAnError{10'000, 10'000};
  // A segment of `growth` bytes is needed, and for that `free` bytes of the
  // card: asks for them and waits on the host as long as others give way. False
  // if they cannot be had.
  bool ask(size_t growth, size_t free, const Patience& patience = kUsual);

  // What the thread does.
  void look_around() noexcept;
  // The process is ending: waits for what is being given.
  void finish();

 private:
  // Bytes that the caching allocator has; that all storages take, wherever they
  // are, and what else is allocated.
  size_t reserved();
  size_t storages();

  bool is_busy();
  void write_down(bool is_busy);
  bool is_at_rest();
  void want(size_t growth);
  void want_on();
  void want_no_more();
  void answer(const Sharers& others);
  bool is_asked();
  void give_way() noexcept;
  bool give_some();

  Device& device_;
  std::atomic<bool> are_others_{false};
  std::atomic<int> working_{0};
  std::atomic<int> givers_{0};
  uint64_t operators_ = 0; // that have run; with the device's mutex
  size_t total_ = 0; // bytes of the card

  std::mutex mutex_; // of the record; the last in the order of locks
  std::unique_ptr<SharedRecords> records_; // null: not opened yet
  Sharer own_; // as last written
  uint64_t asked_ms_ = 0;

  // Of the thread that looks around.
  uint64_t operators_seen_ = 0;
  bool is_work_known_ = false;
  Events work_; // that was queued when the last operator had run
  size_t most_taken_ = 0; // bytes that could not be had from others
  std::future<void> giving_; // what the other thread does
};

} // namespace at::cuda::lms
