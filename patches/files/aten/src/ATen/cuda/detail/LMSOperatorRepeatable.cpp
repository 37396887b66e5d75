#include <ATen/cuda/detail/LMSOperatorRepeatable.h>

#include <ATen/Context.h>
#include <ATen/core/enum_tag.h>
#include <ATen/cuda/detail/LMSOperatorKernel.h>
#include <ATen/cuda/detail/LMSOperatorRandom.h>
#include <ATen/cuda/detail/LMSOperatorTraits.h>

#include <string_view>
#include <unordered_set>

namespace at::cuda::lms {
namespace {

// Besides those that upstream tags as pointwise. tests/engine/test_recipes.py
// runs each of them again on many samples.
const std::unordered_set<std::string_view>& repeatable() {
  // One in place goes by the name without the last underscore, and "out=" by
  // that of the operator without.
  static const std::unordered_set<std::string_view> names{
      "aten::_adaptive_avg_pool2d",
      "aten::_adaptive_avg_pool3d",
      "aten::_fused_rms_norm",
      "aten::_log_softmax",
      "aten::_prelu_kernel",
      "aten::_scaled_dot_product_cudnn_attention",
      "aten::_scaled_dot_product_efficient_attention",
      "aten::_scaled_dot_product_flash_attention",
      "aten::_softmax",
      "aten::_to_copy",
      "aten::addbmm",
      "aten::addmm",
      "aten::addmv",
      "aten::avg_pool2d",
      "aten::avg_pool3d",
      "aten::baddbmm",
      "aten::bmm",
      "aten::cat",
      "aten::constant_pad_nd",
      "aten::copy",
      "aten::cudnn_batch_norm",
      "aten::elu",
      "aten::embedding",
      "aten::gather",
      "aten::glu",
      "aten::hardswish",
      "aten::hardtanh",
      "aten::index_select",
      "aten::leaky_relu",
      "aten::masked_fill",
      "aten::max_pool2d_with_indices",
      "aten::max_pool3d_with_indices",
      "aten::mm",
      "aten::mv",
      "aten::native_batch_norm",
      "aten::native_dropout",
      "aten::native_group_norm",
      "aten::native_layer_norm",
      "aten::repeat",
      "aten::roll",
      "aten::upsample_bilinear2d",
      "aten::upsample_nearest2d",
      "aten::upsample_nearest3d",
  };
  return names;
}

// cuDNN chooses its algorithm, and some give other bits each time.
bool is_deterministic(
    const c10::FunctionSchema& schema,
    c10::ArrayRef<c10::IValue> arguments) {
  const auto index = schema.argumentIndexWithName("transposed");
  const auto& transposed = arguments[static_cast<size_t>(index.value_or(0))];
  const at::Context& context = at::globalContext();
  return index && transposed.isBool() && !transposed.toBool() &&
      (context.deterministicCuDNN() || context.deterministicAlgorithms());
}

// What looks for the largest adds up in any order. So does the gradient of a
// plain embedding, though PyTorch does not say so: with 20,000 indices of 100
// rows its bits differed from run to run on an H200, and the sums' and means'
// never did.
bool is_sum_or_mean(
    const c10::FunctionSchema& schema,
    c10::ArrayRef<c10::IValue> arguments) {
  constexpr int64_t kMax = 2;
  const auto index = schema.argumentIndexWithName("mode");
  return index && arguments[static_cast<size_t>(*index)].toInt() != kMax;
}

// Writes to its first argument, and to nothing else.
bool is_in_place(const c10::FunctionSchema& schema) {
  if (schema.name().back() != '_') {
    return false;
  }
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    if ((alias && alias->isWrite()) != (i == 0)) {
      return false;
    }
  }
  return schema.arguments()[0].type()->kind() == c10::TypeKind::TensorType &&
      schema.returns().size() == 1;
}

} // namespace

bool is_out(const c10::FunctionSchema& schema) {
  bool is_any = false;
  for (const auto& argument : schema.arguments()) {
    const auto* alias = argument.alias_info();
    if (!alias || !alias->isWrite()) {
      continue;
    }
    if (!argument.is_out() ||
        argument.type()->kind() != c10::TypeKind::TensorType) {
      return false;
    }
    is_any = true;
  }
  return is_any;
}

bool is_repeatable(
    const c10::OperatorHandle& op,
    c10::ArrayRef<c10::IValue> arguments) {
  const auto& schema = op.schema();
  if (is_kernel(op)) {
    return is_pure_kernel(op);
  }
  std::string_view name = schema.name();
  if (is_in_place(schema)) {
    name.remove_suffix(1);
  } else if (schema.is_mutable() && !is_out(schema)) {
    return false;
  }
  if (name == "aten::convolution") {
    return is_deterministic(schema, arguments);
  }
  if (name == "aten::_embedding_bag_backward") {
    return is_sum_or_mean(schema, arguments);
  }
  return repeatable().count(name) > 0 ||
      (op.hasTag(at::Tag::pointwise) && !is_random(op) &&
       starts_with(name, "aten::"));
}

} // namespace at::cuda::lms
