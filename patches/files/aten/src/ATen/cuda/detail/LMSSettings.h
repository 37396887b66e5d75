#pragma once

#include <ATen/cuda/detail/LMSCorePolicy.h>

#include <atomic>
#include <cstddef>

namespace at::cuda::lms {

// Process-wide switches. Read without a lock; a change takes effect at the
// next operator.
class Settings {
 public:
  static Settings& get();

  // Storages may be adopted.
  bool enabled() const {
    return enabled_.load(std::memory_order_relaxed);
  }
  void set_enabled(bool enabled) {
    enabled_.store(enabled);
  }

  // There may be managed storages, so operators pin: from before LMS is enabled
  // until it is off and the last storage is back.
  bool active() const {
    return active_.load(std::memory_order_relaxed);
  }
  void set_active(bool active) {
    active_.store(active);
  }

  // Of devices that are used for the first time from now on. Others take on its
  // traits if they have the same policy.
  const PolicyKind& policy() const {
    return *policy_.load(std::memory_order_relaxed);
  }
  void set_policy(const PolicyKind& policy) {
    policy_.store(&policy);
  }

  // A profiler that records shapes looks at the arguments of every operator
  // before LMS sees it, at their addresses too. That is const access, and goes
  // unchecked for that long: the address is null.
  bool profiled() const {
    return profiled_.load(std::memory_order_relaxed);
  }
  void set_profiled(bool profiled) {
    profiled_.store(profiled);
  }

  // torch.distributed is in use: one way. DistributedDataParallel asks whether
  // gradients and its buckets are on the same storage, which is const access
  // outside any operator.
  bool distributed() const {
    return distributed_.load(std::memory_order_relaxed);
  }
  // True the first time.
  bool set_distributed() {
    return !distributed_.exchange(true);
  }

  // Bytes may be made again instead of being copied (Note [Recipes]).
  bool recompute() const {
    return recompute_.load(std::memory_order_relaxed);
  }
  void set_recompute(bool recompute) {
    recompute_.store(recompute);
  }

  // What could be made again is copied all the same, and made as well when it
  // comes back, to compare the two. For tests of operators, with chaos.
  bool verify() const {
    return verify_.load(std::memory_order_relaxed);
  }
  void set_verify(bool verify) {
    verify_.store(verify);
  }

  // Bytes; smaller storages are not managed.
  size_t min_bytes() const {
    return min_bytes_.load(std::memory_order_relaxed);
  }
  void set_min_bytes(size_t bytes) {
    min_bytes_.store(bytes);
  }

  // Bytes; the limit of devices that were given none of their own. 0: each
  // device's default.
  size_t default_limit() const {
    return default_limit_.load(std::memory_order_relaxed);
  }
  void set_default_limit(size_t bytes) {
    default_limit_.store(bytes);
  }

  // True in a process made by fork, where neither CUDA nor the locks of the
  // parent's threads can be used.
  bool is_forked_child() const {
    return forked_.load(std::memory_order_relaxed);
  }

 private:
  Settings();

  std::atomic<bool> enabled_{false};
  std::atomic<bool> active_{false};
  std::atomic<const PolicyKind*> policy_{find_policy("planned")};
  std::atomic<bool> recompute_{true};
  std::atomic<bool> verify_{false};
  std::atomic<bool> profiled_{false};
  std::atomic<bool> distributed_{false};
  std::atomic<bool> forked_{false};
  std::atomic<size_t> min_bytes_{1};
  std::atomic<size_t> default_limit_{0};
};

} // namespace at::cuda::lms
