#include <ATen/cuda/detail/LMSOperatorScope.h>

#include <ATen/cuda/detail/LMSCudaCaptures.h>
#include <ATen/cuda/detail/LMSOperatorRecurrent.h>
#include <ATen/cuda/detail/LMSOperatorTouched.h>
#include <ATen/cuda/detail/LMSOperators.h>
#include <c10/util/hash.h>

#include <algorithm>
#include <utility>

namespace at::cuda::lms {

OperatorScope::~OperatorScope() {
  unpin(pinned_);
}

void OperatorScope::record(const c10::OperatorName& name) {
  if (!is_adoption_paused()) {
    span_ = Trace::begin(name);
  }
}

Recipes* OperatorScope::recipes() const {
  return pinned_.size() == 1 ? &pinned_.front().first->recipes() : nullptr;
}

void OperatorScope::keep(
    const c10::OperatorHandle& op,
    const OperatorTraits& traits,
    c10::DispatchKeySet below,
    c10::ArrayRef<c10::IValue> arguments) {
  const Recipes* recipes = this->recipes();
  if (!recipes || C10_LIKELY(!recipes->are_wanted()) || is_capturing()) {
    return;
  }
  recipe_ = Recipe::begin(op, traits, below, arguments, pinned_);
  time();
}

void OperatorScope::time() {
  Recipes* recipes = this->recipes();
  if (!recipes || C10_LIKELY(!recipes->are_kept()) || is_capturing()) {
    return;
  }
  signature_ = recipe_ ? recipe_->signature() : sign();
  timing_ = recipes->begin_timing(signature_);
}

// Of an operator without a recipe, by what it has pinned.
uint64_t OperatorScope::sign() const {
  size_t hash = name_;
  for (const Pin& pin : pinned_.front().second) {
    hash = c10::hash_combine(hash, pin.record->bytes);
  }
  return hash;
}

void OperatorScope::end() {
  Trace::end(span_);
  if (C10_UNLIKELY(timing_.begin != nullptr)) {
    recipes()->end_timing(signature_, timing_);
  }
  if (C10_UNLIKELY(recipe_ != nullptr) && !recipe_->end_drawing()) {
    recipe_ = nullptr;
  }
}

void OperatorScope::adopt(c10::ArrayRef<c10::IValue> results) {
  TouchedList touched = touched_by_results(results);
  for (const Touched& entry : touched_by_results(made_inside())) {
    touched.push_back(entry);
  }
  auto used = std::move(pinned_);
  pinned_.clear();
  for (const Touched& entry : touched) {
    const auto* device = &Device::get(entry.device);
    if (std::none_of(used.begin(), used.end(), [&](const auto& pinned) {
          return pinned.first == device;
        })) {
      used.push_back({&Device::get(entry.device), {}});
    }
  }
  for (auto& [device, pins] : used) {
    // What other devices get of it is not made again: see Recipes.
    const bool is_its_own = device == used.front().first;
    device->finish_operator(
        pins,
        take_device(touched, device->index()),
        current_stream(device->index()),
        {name_, span_, is_its_own ? recipe_ : nullptr, signature_, results});
  }
  if (span_.begin) {
    Trace::write_completed();
  }
  for (auto& [device, pins] : used) {
    if (device->world().traits().evicts_all) {
      device->room().reclaim({}, Scope::kAll, /*may_wait=*/true);
    }
  }
}

} // namespace at::cuda::lms
