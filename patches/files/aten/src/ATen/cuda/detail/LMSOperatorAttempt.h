#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/cuda/detail/LMSOperatorTraits.h>
#include <c10/util/SmallVector.h>

namespace at::cuda::lms {

// Note [Gathering an operator's storages]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// The storages of an operator are pinned where they lie. When they lie
// scattered, the memory between them may be too small a piece for a result,
// though there is enough of it, and they cannot be moved: the operator has
// their addresses. So when it runs out of memory its pins are given back,
// everything is evicted, and the memory is taken as one segment. The operator
// then runs again, its storages side by side, with all that is free in one
// piece.
//
// It runs again only where nobody can tell: when it had done nothing yet, or
// when it is one of PyTorch's own that writes nothing but its results and draws
// no random numbers.

// One run of an operator on the calling thread, from its construction on.
class Attempt {
 public:
  Attempt(
      const c10::OperatorHandle& op,
      const OperatorTraits& traits,
      torch::jit::Stack& stack);

  // The operator has run: lets its arguments go before its results are managed.
  void end() {
    arguments_.clear();
  }
  // Whether it is an operator that may ever run again.
  bool can_repeat() const;
  // Whether it may run again whatever it has done by then.
  bool may_always_run_again() const;
  // The operator ran out of memory: whether it may run again.
  bool may_run_again() const;
  // Puts the arguments back on the stack and returns them.
  c10::ArrayRef<c10::IValue> restore() const;

 private:
  bool has_done_something() const;

  const OperatorTraits& traits_;
  torch::jit::Stack& stack_;
  // Kept, because who unpacks lists and the like takes them off the stack.
  c10::SmallVector<c10::IValue, 8> arguments_;
  const size_t below_; // values on the stack that are not the operator's
  const uint64_t steps_;
};

// An operator has got memory, or another one has run inside of it.
void note_step() noexcept;

} // namespace at::cuda::lms
