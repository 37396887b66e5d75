#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/cuda/detail/LMSDevice.h>
#include <ATen/cuda/detail/LMSOperatorTraits.h>

#include <cstdint>
#include <memory>

namespace at::cuda::lms {

// One operator on the calling thread while it runs, its storages pinned.
class OperatorScope {
 public:
  // `name`: its hash. Takes the pins over.
  OperatorScope(uint64_t name, PinsByDevice pinned)
      : name_(name), pinned_(std::move(pinned)) {}
  OperatorScope(const OperatorScope&) = delete;
  OperatorScope& operator=(const OperatorScope&) = delete;
  ~OperatorScope();

  // Has its time recorded in the trace. Throws c10::Error when CUDA does.
  void record(const c10::OperatorName& name);
  // Keeps how its results are made, and times it, where either is wanted. For
  // an operator that is not inside of another one.
  void keep(
      const c10::OperatorHandle& op,
      const OperatorTraits& traits,
      c10::DispatchKeySet below,
      c10::ArrayRef<c10::IValue> arguments);
  // Times it where that is wanted: what cannot run again.
  void time();

  // It is launched.
  void end();
  // Gives the pins back and starts to manage what it has made, then does what
  // the policy wants done next.
  void adopt(c10::ArrayRef<c10::IValue> results);

 private:
  uint64_t sign() const;
  // The recipes of its device; null if it uses several.
  Recipes* recipes() const;

  const uint64_t name_;
  PinsByDevice pinned_;
  Trace::Span span_;
  std::shared_ptr<Recipe> recipe_;
  uint64_t signature_ = 0;
  Recipes::Timing timing_;
};

} // namespace at::cuda::lms
