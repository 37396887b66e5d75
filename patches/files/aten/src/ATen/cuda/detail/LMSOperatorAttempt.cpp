#include <ATen/cuda/detail/LMSOperatorAttempt.h>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/cuda/detail/LMSCudaCaptures.h>

#include <algorithm>
#include <cstddef>

namespace at::cuda::lms {
namespace {

thread_local uint64_t steps = 0; // of the operators of this thread

bool fits_its_storage(const at::Tensor& tensor) {
  return !tensor.defined() || !tensor.has_storage() ||
      at::detail::computeStorageNbytes(
          tensor.sizes(),
          tensor.strides(),
          tensor.itemsize(),
          static_cast<size_t>(tensor.storage_offset())) <=
      tensor.storage().nbytes();
}

// False for an argument that was to grow: a tensor gets its new shape before
// its storage gets the memory, and an operator that ran again would take it for
// large enough.
bool is_as_before(const c10::IValue& argument) {
  if (argument.isTensor()) {
    return fits_its_storage(argument.toTensor());
  }
  if (!argument.isTensorList()) {
    return true;
  }
  const auto tensors = argument.toListRef();
  return std::all_of(tensors.begin(), tensors.end(), is_as_before);
}

} // namespace

Attempt::Attempt(
    const c10::OperatorHandle& op,
    const OperatorTraits& traits,
    torch::jit::Stack& stack)
    : traits_(traits),
      stack_(stack),
      arguments_(
          stack.end() -
              static_cast<std::ptrdiff_t>(op.schema().arguments().size()),
          stack.end()),
      below_(stack.size() - arguments_.size()),
      steps_(steps) {}

// A kernel of PyTorch gets the memory of its results before it launches
// anything; so nothing was launched if there was none yet.
bool Attempt::has_done_something() const {
  return steps != steps_ ||
      !std::all_of(arguments_.begin(), arguments_.end(), is_as_before);
}

bool Attempt::can_repeat() const {
  return traits_.is_from_pytorch;
}

bool Attempt::may_always_run_again() const {
  return traits_.has_no_effects && !is_capturing();
}

bool Attempt::may_run_again() const {
  return may_always_run_again() ||
      (can_repeat() && !is_capturing() && !has_done_something());
}

c10::ArrayRef<c10::IValue> Attempt::restore() const {
  stack_.resize(below_);
  stack_.insert(stack_.end(), arguments_.begin(), arguments_.end());
  return torch::jit::last(stack_, arguments_.size());
}

void note_step() noexcept {
  ++steps;
}

} // namespace at::cuda::lms
