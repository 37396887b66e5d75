#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/cuda/detail/LMSCoreValues.h>
#include <ATen/cuda/detail/LMSDeviceAccess.h>
#include <ATen/cuda/detail/LMSOperatorFlags.h>
#include <ATen/cuda/detail/LMSOperatorRandom.h>
#include <ATen/cuda/detail/LMSOperatorTraits.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace at::cuda::lms {

// Note [Recipes]
// ~~~~~~~~~~~~~~
// Most of what a forward pass makes takes less time to compute again than to
// copy to the host and back. A *recipe* is what it takes to compute it: the
// operator, with its arguments and the flags that kernels read. Tensors among
// the arguments are kept as *values*, the bytes that a storage holds from one
// write to the next, and as their shapes on them. So a recipe keeps no memory
// of the device alive, and is never run with other bytes than the operator had.
//
// A value is available while its storage holds it. One that is not can still be
// made if it has a recipe itself: an activation often dies as soon as the next
// operator has run, and then is made for a moment. So is what an operator in
// place has overwritten, and the operator runs on what was made. This ends
// after few steps.
//
// What an operator writes to need not have had anything: memory that has just
// been allocated, as Inductor does for its kernels, or all of an "out=". Then
// it runs again on new memory.
//
// Which operators may run again: see is_repeatable. They have no effects but
// their results, and give the same bits each time, some with the same random
// numbers.

// What an operator does with an argument: `kMade` is a result of its own, of
// which it reads nothing.
enum class Role : uint8_t { kRead, kUpdated, kMade };

class Recipe final : public Ingredients {
 public:
  // A tensor, on the value in the same place.
  struct Argument {
    caffe2::TypeMeta type;
    c10::SmallVector<int64_t, 4> sizes;
    c10::SmallVector<int64_t, 4> strides;
    int64_t offset; // in elements
  };

  // For an operator that is about to run, its arguments pinned by `pins`. Null
  // if none is to be kept of it.
  static std::shared_ptr<Recipe> begin(
      const c10::OperatorHandle& op,
      const OperatorTraits& traits,
      c10::DispatchKeySet below,
      c10::ArrayRef<c10::IValue> arguments,
      const PinsByDevice& pins);

  // The operator has run. False if nobody knows which random numbers it drew.
  bool end_drawing();
  // A storage that the operator writes to, and what it had before.
  struct Written {
    ManagedStorage* record; // while the operator is under way
    ValuePtr before;
    Argument tensor;
    size_t bytes; // of the storage
  };
  // Its results are what it wrote to, if there is any.
  const std::vector<Written>& written() const {
    return written_;
  }

  const std::vector<Argument>& tensors() const {
    return tensors_;
  }
  // The same for operators that take the same time: of their names, and of the
  // types and shapes of their arguments.
  uint64_t signature() const {
    return signature_;
  }
  std::string name() const {
    return op_.schema().operator_name().name;
  }
  // Runs the operator again on tensors that have the bytes of `values`, and
  // returns its results. Like any operator it may throw.
  torch::jit::Stack run(const std::vector<at::Tensor>& tensors) const;

 private:
  Recipe(
      const c10::OperatorHandle& op,
      c10::DispatchKeySet below,
      const Flags& flags)
      : op_(op), below_(below), flags_(flags) {}
  bool add(const c10::IValue& argument, const PinsByDevice& pins, Role role);
  bool add(const at::Tensor& tensor, const Pins& own, Role role);
  void sign();
  torch::jit::Stack arguments(
      const std::vector<at::Tensor>& tensors,
      torch::jit::Stack& written) const;

  // How an argument is put together from `tensors_`.
  enum class Kind { kPlain, kTensor, kList, kOptionalList };
  struct Place {
    Kind kind;
    size_t count; // elements of a list
  };

  c10::OperatorHandle op_;
  c10::DispatchKeySet below_;
  Flags flags_;
  std::vector<c10::IValue> plain_; // by argument; None where there are tensors
  std::vector<Place> places_; // by argument
  // Where a tensor among the arguments comes from.
  enum class Origin : uint8_t {
    kUndefined, // an element of an optional list
    kValue, // the next of `tensors_`
    kUpdated, // that, and it is written to
    kNew, // written to, on memory that is allocated for it
  };
  std::vector<Origin> origins_; // by tensor, elements of lists too
  std::vector<Argument> tensors_;
  std::vector<Written> written_;
  uint64_t signature_ = 0;
  c10::DeviceIndex device_ = -1; // that it draws on
  std::optional<Drawn> drawn_; // random numbers
};

// A tensor that has the bytes of an argument, in the storage of its value.
at::Tensor tensor_on(
    const c10::Storage& storage,
    const Recipe::Argument& argument);

} // namespace at::cuda::lms
