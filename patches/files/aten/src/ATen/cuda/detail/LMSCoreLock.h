#pragma once

#include <condition_variable>
#include <mutex>
#include <stdexcept>

namespace at::cuda::lms {

// Holds the mutex of one device and checks that the thread holds no other: see
// Note [Lock order of Large Model Support].
class Lock {
 public:
  explicit Lock(std::mutex& mutex) : lock_(mutex, std::defer_lock) {
    if (is_held()) {
      throw std::logic_error("a thread took two LMS device locks");
    }
    lock_.lock();
    is_held() = true;
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  ~Lock() {
    is_held() = false;
  }

  template <class Predicate>
  void wait(std::condition_variable& condition, Predicate predicate) {
    condition.wait(lock_, predicate);
  }

  template <class Duration>
  void wait_for(std::condition_variable& condition, Duration duration) {
    condition.wait_for(lock_, duration);
  }

  // True if the calling thread holds the mutex of some device.
  static bool& is_held() {
    static thread_local bool held = false;
    return held;
  }

 private:
  std::unique_lock<std::mutex> lock_;
};

} // namespace at::cuda::lms
