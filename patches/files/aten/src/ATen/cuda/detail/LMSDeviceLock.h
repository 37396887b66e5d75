#pragma once

#include <ATen/cuda/detail/LMSAllocator.h>
#include <ATen/cuda/detail/LMSDevice.h>
#include <c10/util/Exception.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace at::cuda::lms {

// What operations on a Device let go of. Declare it before the Lock: it frees
// when the mutex is released, see Note [Lock order of Large Model Support].
struct Device::Freed {
  std::vector<c10::DataPtr> memory;
  std::vector<std::unique_ptr<ManagedStorage>> records;
  Device& device;
  bool is_letting_go = false;
  // Streams that the allocator must wait for before it reuses `recorded_in`.
  c10::SmallVector<c10::cuda::CUDAStream, 1> recorded;
  const c10::DataPtr* recorded_in = nullptr;

  explicit Freed(Device& owner) : device(owner) {}
  Freed(const Freed&) = delete;
  Freed& operator=(const Freed&) = delete;
  ~Freed() {
    let_go();
  }

  // Without the mutex.
  void let_go() {
    for (const auto& stream : recorded) {
      Allocator::get().native().recordStream(*recorded_in, stream);
    }
    recorded.clear();
    memory.clear();
    if (is_letting_go) {
      is_letting_go = false;
      --device.letting_go_;
      device.note_change();
    }
  }

  void add(c10::DataPtr data_ptr) {
    if (!is_letting_go) {
      is_letting_go = true;
      ++device.letting_go_;
    }
    memory.push_back(std::move(data_ptr));
  }
};

// Holds the mutex of one Device and checks the lock order.
class Device::Lock {
 public:
  explicit Lock(Device& device) : lock_(device.mutex_, std::defer_lock) {
    TORCH_INTERNAL_ASSERT(
        !is_held(), "a thread took two LMS device locks (likely logic error)");
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

  // True if the calling thread holds the lock of some Device.
  static bool& is_held() {
    static thread_local bool held = false;
    return held;
  }

 private:
  std::unique_lock<std::mutex> lock_;
};

} // namespace at::cuda::lms
