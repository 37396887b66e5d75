#pragma once

#include <ATen/cuda/detail/LMSCoreContention.h>
#include <ATen/cuda/detail/LMSCorePageTable.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace at::cuda::lms {

// What operations with a device's mutex let go of. Declare it before the Lock:
// it frees when the mutex is released, see Note [Lock order of Large Model
// Support].
class Freed {
 public:
  explicit Freed(Contention& contention) : contention_(contention) {}
  Freed(const Freed&) = delete;
  Freed& operator=(const Freed&) = delete;
  ~Freed() {
    let_go();
  }

  void add(DeviceMemory memory) {
    if (!is_letting_go_) {
      is_letting_go_ = true;
      contention_.begin_letting_go();
    }
    memory_.push_back(std::move(memory));
  }
  void add(std::unique_ptr<PageEntry> page) {
    pages_.push_back(std::move(page));
  }
  // To be called before anything is freed.
  void before(std::function<void()> action) {
    before_ = std::move(action);
  }

  // Without the mutex.
  void let_go() {
    if (before_) {
      std::exchange(before_, nullptr)();
    }
    memory_.clear();
    if (is_letting_go_) {
      is_letting_go_ = false;
      contention_.end_letting_go();
    }
  }

 private:
  Contention& contention_;
  std::function<void()> before_;
  // The memory goes first: the end of a page may free its StorageImpl.
  std::vector<std::unique_ptr<PageEntry>> pages_;
  std::vector<DeviceMemory> memory_;
  bool is_letting_go_ = false;
};

} // namespace at::cuda::lms
