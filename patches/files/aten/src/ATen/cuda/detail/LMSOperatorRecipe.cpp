#include <ATen/cuda/detail/LMSOperatorRecipe.h>

#include <ATen/core/enum_tag.h>
#include <ATen/cuda/detail/LMSAllocatorErrors.h>
#include <ATen/cuda/detail/LMSDevice.h>
#include <ATen/cuda/detail/LMSOperatorTouched.h>
#include <ATen/cuda/detail/LMSOperators.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/hash.h>

#include <algorithm>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace at::cuda::lms {
namespace {

// Besides those that upstream tags as pointwise. tests/engine/test_recipes.py
// runs each of them again on many samples.
const std::unordered_set<std::string_view>& repeatable() {
  // One in place goes by the name without the last underscore.
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

constexpr int kDrawAttempts = 64;

// A result may be another one than of the same operator on whole tensors.
bool is_plain(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided && tensor.has_storage() &&
      !tensor.is_conj() && !tensor.is_neg() && !tensor.is_quantized();
}

// It has no bytes that anybody could write to.
bool is_empty(const at::Tensor& tensor) {
  return tensor.is_cuda() && is_plain(tensor) && tensor.storage().nbytes() == 0;
}

} // namespace

bool is_repeatable(
    const c10::OperatorHandle& op,
    c10::ArrayRef<c10::IValue> arguments) {
  const auto& schema = op.schema();
  std::string_view name = schema.name();
  if (schema.is_mutable()) {
    if (!is_in_place(schema)) {
      return false;
    }
    name.remove_suffix(1);
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

std::shared_ptr<Recipe> Recipe::begin(
    const c10::OperatorHandle& op,
    const OperatorTraits& traits,
    c10::DispatchKeySet below,
    c10::ArrayRef<c10::IValue> arguments,
    const PinsByDevice& pins) {
  if (pins.size() != 1 || !is_repeatable(op, arguments)) {
    return nullptr;
  }
  const auto flags = Flags::now();
  if (!flags) {
    return nullptr;
  }
  std::shared_ptr<Recipe> recipe(new Recipe(op, below, *flags));
  recipe->is_in_place_ = op.schema().is_mutable();
  pins.front().first->recipes().note_recipe();
  const Lock lock(pins.front().first->mutex());
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool is_needed = !is_updated_only(traits, op.schema(), arguments, i);
    if (!recipe->add(is_needed ? arguments[i] : c10::IValue(), pins)) {
      return nullptr;
    }
  }
  if (recipe->tensors_.empty()) {
    return nullptr;
  }
  recipe->sign();
  if (traits.is_random) {
    recipe->device_ = pins.front().first->index();
    recipe->drawn_ = begin_drawing(recipe->device_);
  }
  return recipe;
}

bool Recipe::end_drawing() {
  if (!drawn_) {
    return true;
  }
  drawn_ = lms::end_drawing(*drawn_, device_);
  if (!drawn_) {
    return false;
  }
  if (drawn_->begin == drawn_->end) { // none, as without dropout
    drawn_.reset();
  }
  return true;
}

// Nobody has written to what it wrote to meanwhile.
bool Recipe::has_made(const ManagedStorage& record) const {
  return !is_in_place_ || record.overwritten == values.front();
}

bool Recipe::add(const c10::IValue& argument, const PinsByDevice& pins) {
  if (argument.isTensor()) {
    const at::Tensor& tensor = argument.toTensor();
    // A number that was made a tensor of: nobody can write to it.
    const bool is_number = tensor.defined() && tensor.is_cpu() &&
        tensor.unsafeGetTensorImpl()->is_wrapped_number();
    if (is_number || !tensor.defined()) {
      places_.push_back({Kind::kPlain, 0});
      plain_.push_back(argument);
      return true;
    }
    if (is_empty(tensor)) {
      places_.push_back({Kind::kPlain, 0});
      plain_.emplace_back(
          at::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(
              c10::VariableVersion(0),
              /*allow_tensor_metadata_change=*/false)));
      return true;
    }
    places_.push_back({Kind::kTensor, 1});
    plain_.emplace_back();
    return add(tensor, pins.front().second);
  }
  const bool is_list = argument.isTensorList();
  if (is_list || argument.isOptionalTensorList()) {
    const auto elements = argument.toListRef();
    places_.push_back(
        {is_list ? Kind::kList : Kind::kOptionalList, elements.size()});
    plain_.emplace_back();
    for (const c10::IValue& element : elements) {
      const bool is_defined =
          element.isTensor() && element.toTensor().defined();
      are_defined_.push_back(is_defined ? 1 : 0);
      if (is_defined && !add(element.toTensor(), pins.front().second)) {
        return false;
      }
    }
    return true;
  }
  if (argument.isGenerator() || argument.isStorage() || argument.isStream() ||
      argument.isObject() || argument.isCustomClass()) {
    return false;
  }
  places_.push_back({Kind::kPlain, 0});
  plain_.push_back(argument);
  return true;
}

// With the mutex. `own`: the operator's pins.
bool Recipe::add(const at::Tensor& tensor, const Pins& own) {
  if (!tensor.is_cuda() || !is_plain(tensor)) {
    return false;
  }
  ManagedStorage* record = managed(tensor.storage().unsafeGetStorageImpl());
  if (!record || !record->is_watched) {
    return false;
  }
  // Who else has pinned it may be about to write to it.
  uint32_t count = 0;
  bool is_written = false;
  for (const Pin& pin : own) {
    count += pin.record == record ? 1 : 0;
    is_written = is_written || (pin.record == record && pin.writes);
  }
  if (record->pins - record->own_pins > count) {
    return false;
  }
  if (is_written && (!record->overwritten || !record->overwritten->recipe)) {
    return false;
  }
  values.push_back(
      is_written ? record->overwritten : Values::value_of(*record));
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  tensors_.push_back(
      {tensor.dtype(),
       {sizes.begin(), sizes.end()},
       {strides.begin(), strides.end()},
       tensor.storage_offset()});
  return true;
}

void Recipe::sign() {
  size_t hash = std::hash<c10::OperatorName>()(op_.schema().operator_name());
  for (const Argument& tensor : tensors_) {
    hash = c10::hash_combine(hash, tensor.type.itemsize());
    for (const int64_t size : tensor.sizes) {
      hash = c10::hash_combine(hash, static_cast<size_t>(size));
    }
    for (const int64_t stride : tensor.strides) {
      hash = c10::hash_combine(hash, static_cast<size_t>(stride));
    }
  }
  signature_ = hash;
}

torch::jit::Stack Recipe::run(const std::vector<at::Tensor>& tensors) const {
  torch::jit::Stack stack;
  auto next = tensors.begin();
  auto is_defined = are_defined_.begin();
  for (size_t i = 0; i < places_.size(); ++i) {
    switch (places_[i].kind) {
      case Kind::kPlain:
        stack.push_back(plain_[i]);
        break;
      case Kind::kTensor:
        stack.emplace_back(*next++);
        break;
      case Kind::kList: {
        c10::List<at::Tensor> list;
        for (size_t k = 0; k < places_[i].count; ++k) {
          list.push_back(*is_defined++ ? *next++ : at::Tensor());
        }
        stack.emplace_back(std::move(list));
        break;
      }
      case Kind::kOptionalList: {
        c10::List<std::optional<at::Tensor>> list;
        for (size_t k = 0; k < places_[i].count; ++k) {
          list.push_back(
              *is_defined++ ? std::optional<at::Tensor>(*next++)
                            : std::nullopt);
        }
        stack.emplace_back(std::move(list));
        break;
      }
    }
  }
  // Whatever the thread is in the middle of sees nothing of it: not autograd,
  // autocast, transforms or modes, nor who records functions.
  const c10::impl::ForceDispatchKeyGuard only_below(
      c10::default_included_set |
          c10::DispatchKeySet({kKey, kKeyAboveAllBackends}),
      c10::default_excluded_set | c10::autograd_dispatch_keyset |
          c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView));
  const at::DisableRecordFunctionGuard unrecorded;
  const FlagsScope flags(flags_);
  const UncaughtScope same_algorithm(Uncaught::kAll);
  for (int attempt = 0; attempt < kDrawAttempts; ++attempt) {
    torch::jit::Stack results = stack;
    std::optional<DrawAgainScope> numbers;
    if (drawn_) {
      numbers.emplace(device_, *drawn_);
    }
    run_inside(op_, below_, &results);
    if (!numbers || numbers->is_the_same()) {
      return results;
    }
  }
  TORCH_CHECK(
      false,
      "Large Model Support cannot draw the random numbers of ",
      name(),
      " again: a thread that it is not on in draws all the time. Call "
      "torch.cuda.lms.enable_thread() there.");
}

} // namespace at::cuda::lms
