#include <ATen/cuda/detail/LMSOperatorRecurrent.h>

#include <ATen/core/Tensor.h>
#include <ATen/cuda/detail/LMSOperators.h>
#include <ATen/cuda/detail/LMSSettings.h>
#include <ATen/ops/cudnn_is_acceptable.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace at::cuda::lms {
namespace {

constexpr std::array<const char*, 4> kNetworks =
    {"aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu"};

// Of tensors that stand for others.
constexpr c10::DispatchKeySet kWithoutMemory{
    c10::DispatchKey::Python,
    c10::DispatchKey::Functionalize};

// Of the network that this thread is inside of.
thread_local std::vector<c10::IValue>* made = nullptr;

class Inside {
 public:
  Inside() : outer_(std::exchange(made, &made_)) {}
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  ~Inside() {
    made = outer_;
  }

 private:
  std::vector<c10::IValue> made_;
  std::vector<c10::IValue>* const outer_;
};

} // namespace

bool is_recurrent(const c10::OperatorName& name) {
  return std::any_of(kNetworks.begin(), kNetworks.end(), [&](const char* one) {
    return name.name == one;
  });
}

void run_recurrent(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  const auto& input =
      torch::jit::peek(*stack, 0, op.schema().arguments().size()).toTensor();
  if (!Settings::get().active() || keys.has_any(kWithoutMemory) ||
      !at::cudnn_is_acceptable(input)) {
    op.redispatchBoxed(
        keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey),
        stack);
    return;
  }
  const Inside inside;
  run_operator(op, keys, stack);
}

void keep_made_inside(c10::ArrayRef<c10::IValue> results) {
  if (made) {
    made->insert(made->end(), results.begin(), results.end());
  }
}

c10::ArrayRef<c10::IValue> made_inside() {
  return made ? c10::ArrayRef<c10::IValue>(*made)
              : c10::ArrayRef<c10::IValue>();
}

} // namespace at::cuda::lms
