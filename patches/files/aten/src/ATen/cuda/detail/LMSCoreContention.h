#pragma once

#include <ATen/cuda/detail/LMSCoreHandles.h>
#include <ATen/cuda/detail/LMSCoreLock.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>

namespace at::cuda::lms {

// How threads that compete for a device's memory wait for each other: what one
// needs may be pinned by operators that another one is launching, or be on its
// way back to the allocator. Called with the mutex, except where noted.
class Contention {
 public:
  Contention(DeviceIndex device, std::mutex& mutex)
      : device_(device), mutex_(mutex) {}

  // The calling thread has pinned so many storages and will unpin them.
  void note_pins(size_t count);
  void note_unpins(size_t count) noexcept;
  // It lets go of them, with or without the mutex: another thread, which takes
  // them on, unpins them.
  void disown(size_t count) const;
  void take_on(size_t count) const;

  // While one of these lives, the thread waits for something else that another
  // thread does, so that nobody hopes for its pins. With the mutex, but for the
  // wait itself.
  class Waiting {
   public:
    explicit Waiting(Contention& contention);
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    ~Waiting();

   private:
    Contention& contention_;
    const int64_t own_;
  };

  // Around the time in which a thread gives memory back to the allocator.
  void begin_letting_go() noexcept; // with or without the mutex
  void end_letting_go() noexcept; // without the mutex

  // Counts the times that memory or pins were given back.
  uint64_t generation() const {
    return generation_.load();
  }

  // Whether there are pins that some thread will give back.
  bool are_pins() const {
    return pins_ > 0;
  }

  // The rest is called without the mutex.

  // True if another thread is about to give something back.
  bool others_hold_pins();
  // Waits on the host until the generation is no longer `seen`. False if no
  // other thread is about to give anything back: all that hold pins are waiting
  // here too. Or if `give_up` has come, which the first wait of a request sets.
  // `help` is called now and then.
  using GiveUp = std::optional<std::chrono::steady_clock::time_point>;
  bool wait_for_others(
      uint64_t seen,
      GiveUp& give_up,
      const std::function<void()>& help);

 private:
  void note_change() noexcept;
  void begin_waiting(int64_t own);

  const DeviceIndex device_;
  std::mutex& mutex_;
  std::condition_variable changed_; // the generation or the waiters did
  std::atomic<uint64_t> generation_{0};
  std::atomic<int> letting_go_{0}; // threads that give memory back
  std::atomic<int> waiters_{0}; // threads in wait_for_others
  int64_t pins_ = 0; // that threads will give back
  int64_t waiting_pins_ = 0; // the part that belongs to waiting threads
};

} // namespace at::cuda::lms
