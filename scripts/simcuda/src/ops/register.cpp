// Puts the simulated kernels in the places of the wheel's, when loaded.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/copy_native.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/library.h>

#include <array>
#include <mutex>
#include <set>
#include <string>

#include "../simcuda.h"
#include "handwritten.h"
#include "host.h"
#include "kernel.h"

namespace simcuda {
namespace {

// Kernels of the wheel that compute nothing on the device, or only by copies.
const std::set<std::string>& kept() {
  static const std::set<std::string> names = {
      "aten::_efficientzerotensor",
      "aten::_fused_sdp_choice",
      "aten::_has_same_storage_numel",
      "aten::_local_scalar_dense",
      "aten::_pin_memory",
      "aten::_use_cudnn_ctc_loss",
      "aten::_use_miopen_ctc_loss",
      "aten::empty",
      "aten::empty_strided",
      "aten::is_pinned",
      "aten::is_set_to",
      "aten::record_stream",
      "aten::resize_",
      "aten::set_",
  };
  return names;
}

// Composite operators that ask what device they are on.
constexpr std::array<const char*, 3> kComposite = {
    "aten::convolution", "aten::convolution_backward", "aten::ldexp"};

// True for operators that return a view: a result is an argument, not written.
bool returns_view(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    const c10::AliasInfo* info = result.alias_info();
    if (info != nullptr && !info->isWrite()) {
      return true;
    }
  }
  return false;
}

bool is_plain_copy(const at::Tensor& to, const at::Tensor& from) {
  const bool same_layout =
      to.sizes() == from.sizes() &&
      ((to.is_contiguous() && from.is_contiguous()) ||
       (to.strides() == from.strides() && to.is_non_overlapping_and_dense()));
  return same_layout && to.scalar_type() == from.scalar_type() &&
         to.is_conj() == from.is_conj() && to.is_neg() == from.is_neg();
}

// Copies that a card makes with its copy engine go the wheel's way, to
// cudaMemcpyAsync; those that it makes with a kernel are computed.
void copy(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const at::Tensor to = torch::jit::peek(*stack, 0, 3).toTensor();
  const at::Tensor from = torch::jit::peek(*stack, 1, 3).toTensor();
  if (to.device() == from.device() && !is_plain_copy(to, from)) {
    return simulate(op, stack);
  }
  if (simcudaIsTimed() != 0) {
    simcudaSpendOperation();
  }
  const bool non_blocking = torch::jit::peek(*stack, 2, 3).toBool();
  at::native::copy_(const_cast<at::Tensor&>(to), from, non_blocking);
  torch::jit::drop(*stack, 3);
  stack->emplace_back(to);
}

class IgnoreWarnings : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

void replace(torch::Library& library, const c10::OperatorName& name) {
  const auto op = c10::Dispatcher::singleton().findSchema(name);
  if (!op || kept().count(name.name) != 0 || returns_view(op->schema())) {
    return;
  }
  const std::string full =
      name.name + (name.overload_name.empty() ? "" : "." + name.overload_name);
  library.impl(full.c_str(),
               torch::CppFunction::makeFromBoxedFunction<&simulate>());
}

void replace_all() {
  add_attention();
  add_recurrent();
  add_others();
  // Never unregistered: the process ends with it.
  static auto* library = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  IgnoreWarnings ignore;  // that kernels are replaced is the purpose
  const c10::WarningUtils::WarningHandlerGuard guard(&ignore);
  const auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name :
       dispatcher.getRegistrationsForDispatchKey(c10::DispatchKey::CUDA)) {
    if (name.name.rfind("aten::", 0) == 0 && name.name != "aten::copy_") {
      replace(*library, name);
    }
  }
  for (const char* name : kComposite) {
    for (const char* overload : {"", "Tensor", "out"}) {
      const c10::OperatorName full(name, overload);
      if (!dispatcher.singleton().findSchema(full)) {
        continue;
      }
      replace(*library, full);
    }
  }
  library->impl("copy_", torch::CppFunction::makeFromBoxedFunction<&copy>());
  if (simcudaIsTimed() != 0) {
    time_host();
  }
}

}  // namespace
}  // namespace simcuda

extern "C" SIMCUDA_API void simopsRegister() {
  static std::once_flag once;
  std::call_once(once, simcuda::replace_all);
}
