#include <ATen/cuda/detail/LMSOperatorRecipe.h>

#include <ATen/cuda/detail/LMSAllocatorErrors.h>
#include <ATen/cuda/detail/LMSDevice.h>
#include <ATen/cuda/detail/LMSOperatorKernel.h>
#include <ATen/cuda/detail/LMSOperatorRepeatable.h>
#include <ATen/cuda/detail/LMSOperatorTouched.h>
#include <ATen/cuda/detail/LMSOperators.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/hash.h>

#include <algorithm>
#include <utility>

namespace at::cuda::lms {
namespace {

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

// Who writes to all of the tensor leaves nothing of what the storage had.
bool is_whole(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() &&
      tensor.nbytes() == tensor.storage().nbytes();
}

// Where an operator is queued, not what it computes. `int? stream` of kernels,
// see Note [Kernels as operators].
bool is_stream(const c10::Argument& argument) {
  return argument.name() == "stream";
}

// What an operator does with an argument. Of a kernel's `out_ptr` see Note
// [Kernels as operators].
Role role_of(const c10::OperatorHandle& op, const c10::Argument& argument) {
  if (!argument.alias_info() || !argument.alias_info()->isWrite()) {
    return Role::kRead;
  }
  const bool is_result = is_kernel(op) ? starts_with(argument.name(), "out_ptr")
                                       : is_out(op.schema());
  return is_result ? Role::kMade : Role::kUpdated;
}

// How an operator's own pins use a storage.
struct OwnUse {
  uint32_t pins = 0;
  bool writes = false;
  bool is_new = false;
};

OwnUse use_of(const ManagedStorage* record, const Pins& own) {
  OwnUse use;
  for (const Pin& pin : own) {
    if (pin.record == record) {
      ++use.pins;
      use.writes = use.writes || pin.writes;
      use.is_new = use.is_new || pin.is_new;
    }
  }
  return use;
}

} // namespace

std::shared_ptr<Recipe> Recipe::begin(
    const c10::OperatorHandle& op,
    const OperatorTraits& traits,
    c10::DispatchKeySet below,
    c10::ArrayRef<c10::IValue> arguments,
    const PinsByDevice& pins) {
  if (pins.size() != 1 || !is_repeatable(op, arguments)) {
    return nullptr;
  }
  // Python chooses the kernel, maybe one of its own, as long as the thread is
  // in its dispatcher.
  if (below.has(c10::DispatchKey::PythonDispatcher)) {
    return nullptr;
  }
  const auto flags = Flags::now();
  if (!flags) {
    return nullptr;
  }
  std::shared_ptr<Recipe> recipe(new Recipe(op, below, *flags));
  pins.front().first->recipes().note_recipe();
  const Lock lock(pins.front().first->mutex());
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::Argument& argument = op.schema().arguments()[i];
    const bool is_needed = !is_stream(argument) &&
        !is_updated_only(traits, op.schema(), arguments, i);
    const Role role = role_of(op, argument);
    if (!recipe->add(is_needed ? arguments[i] : c10::IValue(), pins, role)) {
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

bool Recipe::add(
    const c10::IValue& argument,
    const PinsByDevice& pins,
    Role role) {
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
      if (role != Role::kRead) { // "out=" gives it the bytes of its result
        return false;
      }
      places_.push_back({Kind::kPlain, 0});
      plain_.emplace_back(
          at::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(
              c10::VariableVersion(0),
              /*allow_tensor_metadata_change=*/false)));
      return true;
    }
    places_.push_back({Kind::kTensor, 1});
    plain_.emplace_back();
    return add(tensor, pins.front().second, role);
  }
  const bool is_list = argument.isTensorList();
  if (is_list || argument.isOptionalTensorList()) {
    const auto elements = argument.toListRef();
    places_.push_back(
        {is_list ? Kind::kList : Kind::kOptionalList, elements.size()});
    plain_.emplace_back();
    for (const c10::IValue& element : elements) {
      if (!element.isTensor() || !element.toTensor().defined()) {
        origins_.push_back(Origin::kUndefined);
      } else if (!add(element.toTensor(), pins.front().second, role)) {
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
bool Recipe::add(const at::Tensor& tensor, const Pins& own, Role role) {
  if (!tensor.is_cuda() || !is_plain(tensor)) {
    return false;
  }
  ManagedStorage* record = managed(tensor.storage().unsafeGetStorageImpl());
  if (!record || !record->is_watched) {
    return false;
  }
  // Who else has pinned it may be about to write to it.
  const OwnUse use = use_of(record, own);
  if (record->pins - record->own_pins > use.pins) {
    return false;
  }
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  Argument argument{
      tensor.dtype(),
      {sizes.begin(), sizes.end()},
      {strides.begin(), strides.end()},
      tensor.storage_offset()};
  // What it has, or had until this operator began to write to it.
  const bool is_new =
      role == Role::kMade && (is_kernel(op_) ? use.is_new : is_whole(tensor));
  if (is_new) {
    record->overwritten = std::make_shared<Value>();
  } else if (
      use.writes && (!record->overwritten || !record->overwritten->recipe)) {
    return false;
  }
  if (role != Role::kRead) {
    const bool is_twice =
        std::any_of(written_.begin(), written_.end(), [&](const auto& other) {
          return other.record == record;
        });
    if (is_twice) {
      return false;
    }
    written_.push_back({record, record->overwritten, argument, record->bytes});
  }
  if (is_new) {
    origins_.push_back(Origin::kNew);
    return true;
  }
  origins_.push_back(role == Role::kRead ? Origin::kValue : Origin::kUpdated);
  values.push_back(
      use.writes ? record->overwritten : Values::value_of(*record));
  tensors_.push_back(std::move(argument));
  return true;
}

void Recipe::sign() {
  size_t hash = std::hash<c10::OperatorName>()(op_.schema().operator_name());
  const auto add_tensor = [&hash](const Argument& tensor) {
    hash = c10::hash_combine(hash, tensor.type.itemsize());
    for (const int64_t size : tensor.sizes) {
      hash = c10::hash_combine(hash, static_cast<size_t>(size));
    }
    for (const int64_t stride : tensor.strides) {
      hash = c10::hash_combine(hash, static_cast<size_t>(stride));
    }
  };
  for (const Argument& tensor : tensors_) {
    add_tensor(tensor);
  }
  for (const Written& written : written_) {
    add_tensor(written.tensor);
  }
  signature_ = hash;
}

at::Tensor tensor_on(
    const c10::Storage& storage,
    const Recipe::Argument& argument) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage),
      c10::DispatchKeySet(c10::DispatchKey::CUDA),
      argument.type);
  tensor.unsafeGetTensorImpl()->set_storage_offset(argument.offset);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(
      argument.sizes, argument.strides);
  return tensor;
}

// Adds what the operator writes to to `written`.
torch::jit::Stack Recipe::arguments(
    const std::vector<at::Tensor>& tensors,
    torch::jit::Stack& written) const {
  auto given = tensors.begin();
  auto origin = origins_.begin();
  const auto next = [&]() -> at::Tensor {
    switch (*origin++) {
      case Origin::kUndefined:
        return {};
      case Origin::kValue:
        return *given++;
      case Origin::kUpdated:
        written.emplace_back(*given);
        return *given++;
      case Origin::kNew: {
        const Written& result = written_[written.size()];
        auto* allocator = c10::cuda::CUDACachingAllocator::get();
        const c10::Storage storage(
            c10::Storage::use_byte_size_t(),
            result.bytes,
            allocator->allocate(result.bytes),
            allocator,
            /*resizable=*/true);
        written.emplace_back(tensor_on(storage, result.tensor));
        return written.back().toTensor();
      }
    }
    TORCH_INTERNAL_ASSERT(false, "an argument without origin");
  };
  torch::jit::Stack stack;
  for (size_t i = 0; i < places_.size(); ++i) {
    switch (places_[i].kind) {
      case Kind::kPlain:
        stack.push_back(plain_[i]);
        break;
      case Kind::kTensor:
        stack.emplace_back(next());
        break;
      case Kind::kList: {
        c10::List<at::Tensor> list;
        for (size_t k = 0; k < places_[i].count; ++k) {
          list.push_back(next());
        }
        stack.emplace_back(std::move(list));
        break;
      }
      case Kind::kOptionalList: {
        c10::List<std::optional<at::Tensor>> list;
        for (size_t k = 0; k < places_[i].count; ++k) {
          const at::Tensor element = next();
          list.push_back(
              element.defined() ? std::optional<at::Tensor>(element)
                                : std::nullopt);
        }
        stack.emplace_back(std::move(list));
        break;
      }
    }
  }
  return stack;
}

torch::jit::Stack Recipe::run(const std::vector<at::Tensor>& tensors) const {
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
  torch::jit::Stack written;
  const torch::jit::Stack stack = arguments(tensors, written);
  for (int attempt = 0; attempt < kDrawAttempts; ++attempt) {
    torch::jit::Stack results = stack;
    std::optional<DrawAgainScope> numbers;
    if (drawn_) {
      numbers.emplace(device_, *drawn_);
    }
    run_inside(op_, below_, &results);
    if (!numbers || numbers->is_the_same()) {
      return written.empty() ? results : written;
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
