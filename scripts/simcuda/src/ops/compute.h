// One operator call, computed by the CPU on aliases of the device's memory.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>

#include "alias.h"
#include "handwritten.h"
#include "random.h"

namespace simcuda {

class Computation {
 public:
  // Takes the arguments' addresses now. `own` makes copies of the CPU tensors
  // among them, for a computation that runs later.
  Computation(const c10::OperatorHandle& op,
              c10::ArrayRef<c10::IValue> arguments, c10::Device device,
              bool own);

  // Computes, each time anew; afterwards results() holds CPU tensors.
  void run();

  const torch::jit::Stack& results() const {
    return stack_;
  }
  // The aliased arguments, as they were before or are after run().
  const std::vector<c10::IValue>& arguments() const {
    return arguments_;
  }

 private:
  c10::OperatorHandle op_;
  Aliases aliases_;
  std::vector<c10::IValue> arguments_;
  std::optional<at::PhiloxCudaState> random_;
  torch::jit::Stack stack_;
};

// Keeps everything that may stand above a backend's kernels away from tensors
// that only this library knows.
class BelowEverything {
 public:
  BelowEverything();

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

bool can_compute(const c10::OperatorHandle& op);

// Replaces the arguments on the stack, CPU tensors, by the results. A random
// operator draws from the generator.
void run_on_cpu(const c10::OperatorHandle& op, at::Generator generator,
                torch::jit::Stack& stack);

}  // namespace simcuda
