#include <ATen/cuda/detail/LMSDeviceRecipes.h>

#include <ATen/cuda/detail/LMSDevice.h>
#include <ATen/cuda/detail/LMSOperatorTouched.h>
#include <ATen/cuda/detail/LMSSettings.h>

#include <algorithm>
#include <limits>
#include <utility>

// What can be made again, and how long that takes.

namespace at::cuda::lms {

Recipes::Recipes(Device& device)
    : Values(device.pager().books), device_(device) {}

bool Recipes::is_allowed() const {
  return Settings::get().recompute();
}

bool Recipes::are_wanted() const {
  if (are_kept()) {
    return true;
  }
  const Trace* trace = Trace::of(device_.index());
  return trace && !trace->is_report() && is_allowed() &&
      device_.world().traits().makes_again;
}

// --- operators ---

void Recipes::end_written(
    const std::shared_ptr<Recipe>& recipe,
    c10::ArrayRef<c10::IValue> results) {
  for (size_t i = 0; i < recipe->written().size(); ++i) {
    const auto& [record, before, tensor, bytes] = recipe->written()[i];
    // "out=" is given another shape if it had the wrong one.
    const bool is_as_given = results.size() <= i || !results[i].isTensor() ||
        results[i].toTensor().sizes() == c10::IntArrayRef(tensor.sizes);
    // Nor has anybody written to it meanwhile.
    if (is_as_given && !record->value && record->overwritten == before) {
      note_made(*record, recipe, i);
    }
  }
}

void Recipes::end(
    const std::shared_ptr<Recipe>& recipe,
    c10::ArrayRef<c10::IValue> results) {
  if (!recipe->written().empty()) {
    return;
  }
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i].isTensor() || !results[i].toTensor().defined() ||
        !results[i].toTensor().has_storage()) {
      continue;
    }
    ManagedStorage* record =
        managed(results[i].toTensor().storage().unsafeGetStorageImpl());
    // One that an argument has, too, has a value, unless it was written to.
    if (record && !record->value && record->is_watched &&
        &record->device == &device_) {
      note_made(*record, recipe, i);
    }
  }
}

Recipes::Timing Recipes::begin_timing(uint64_t signature) {
  Timing timing;
  {
    const Lock lock(device_.mutex());
    if (!durations_.is_wanted(signature)) {
      return timing;
    }
    timing.waits = device_.world().waits();
  }
  timing.begin =
      record_timed_event(device_.index(), current_stream(device_.index()));
  return timing;
}

void Recipes::end_timing(uint64_t signature, Timing timing) {
  if (!timing.begin) {
    return;
  }
  Event end =
      record_timed_event(device_.index(), current_stream(device_.index()));
  const Lock lock(device_.mutex());
  // If the stream waited, for memory most often, it was not the operator alone.
  if (timing.waits == device_.world().waits()) {
    durations_.add(signature, std::move(timing.begin), std::move(end));
  }
}

// --- with the mutex ---

uint64_t Recipes::ns_of(const Ingredients& recipe) const {
  return durations_.of(static_cast<const Recipe&>(recipe).signature());
}

double Recipes::copy_ns() {
  return device_.world().times().copy_ns();
}

void Recipes::tell_times(Operator& op, uint64_t signature) {
  op.clock = device_.world().times().clock();
  op.ns = static_cast<uint32_t>(std::min<uint64_t>(
      durations_.of(signature), std::numeric_limits<uint32_t>::max()));
}

bool Recipes::give_up(ManagedStorage* page, bool at_any_cost) {
  return !Settings::get().verify() && Values::give_up(*page, at_any_cost);
}

void Recipes::on_needless(PageEntry& page) {
  if (auto& orphan = managed(&page)->orphan) {
    orphans_.push_back(std::move(orphan));
    has_orphans_.store(true);
  }
}

bool Recipes::may_end(ManagedStorage* record) {
  if (!is_kept(*record)) {
    return true;
  }
  record->move_to_orphan();
  return false;
}

} // namespace at::cuda::lms
