#include <ATen/cuda/detail/LMSDeviceRecipes.h>

#include <ATen/cuda/detail/LMSDevice.h>
#include <ATen/cuda/detail/LMSOperatorTouched.h>
#include <ATen/cuda/detail/LMSSettings.h>

#include <algorithm>
#include <limits>
#include <utility>

// What can be made again, and what has been dropped.

namespace at::cuda::lms {

bool Recipes::are_kept() const {
  const Traits& traits = device_.world().traits();
  const Books& books = device_.pager().books;
  return traits.makes_again && Settings::get().recompute() &&
      (traits.evicts_all ||
       books.has_been_short.load(std::memory_order_relaxed));
}

// --- operators ---

void Recipes::end(
    const std::shared_ptr<Recipe>& recipe,
    c10::ArrayRef<c10::IValue> results) {
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i].isTensor() || !results[i].toTensor().defined() ||
        !results[i].toTensor().has_storage()) {
      continue;
    }
    ManagedStorage* record =
        managed(results[i].toTensor().storage().unsafeGetStorageImpl());
    // One that an argument has, too, has a value, unless it was written to.
    if (record && !record->value && record->is_watched &&
        &record->device == &device_ && recipe->has_made(*record)) {
      record->value = std::make_shared<Value>();
      record->value->holder = record;
      record->value->recipe = recipe;
      record->value->result = i;
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

// --- dropping, with the mutex ---

// How many dropped pages have to be made, each from the next, before the value
// is there.
int Recipes::chain_below(const Value& value) {
  if (!value.holder) {
    return 0;
  }
  int longest = 0;
  for (const ValuePtr& source : value.holder->sources) {
    longest = std::max(longest, chain_below(*source) + 1);
  }
  return longest;
}

// So many dropped pages in a row are made from the value.
void Recipes::raise(Value& value, int above) {
  if (value.above >= above) {
    return;
  }
  value.above = above;
  if (value.holder) {
    for (const ValuePtr& source : value.holder->sources) {
      raise(*source, above + 1);
    }
  }
}

// What it takes to make the value; false if it cannot be made.
bool Recipes::gather(const Value& value, Needs& needs) {
  if (!value.recipe || ++needs.steps > kMostSteps) {
    return false;
  }
  const uint64_t ns = durations_.of(value.recipe->signature());
  needs.ns += ns;
  needs.is_timed = needs.is_timed && ns > 0;
  for (const Recipe::Argument& argument : value.recipe->tensors()) {
    const ValuePtr& source = argument.value;
    if (!source->holder) {
      if (!gather(*source, needs)) {
        return false;
      }
      continue;
    }
    if (source->is_ending || !source->holder->is_watched) {
      return false;
    }
    needs.chained = std::max(needs.chained, chain_below(*source));
    if (std::find(needs.sources.begin(), needs.sources.end(), source) ==
        needs.sources.end()) {
      needs.sources.push_back(source);
    }
  }
  return true;
}

// Of a copy to the host, per byte, as far as is known.
double Recipes::copy_ns() {
  constexpr double kNsPerByte = 1.0 / 12; // of PCIe 3.0, until one has ended
  const auto& copies = device_.world().times().totals().at(
      static_cast<size_t>(Activity::kPageOut));
  const auto copied = device_.pager().books.stats.paged_out.bytes;
  return copies.us > 0 && copied > 0
      ? 1000 * copies.us / static_cast<double>(copied)
      : kNsPerByte;
}

void Recipes::tell_times(Operator& op, uint64_t signature) {
  op.clock = device_.world().times().clock();
  op.clock.copy_ns = copy_ns();
  op.ns = static_cast<uint32_t>(std::min<uint64_t>(
      durations_.of(signature), std::numeric_limits<uint32_t>::max()));
}

// What it takes to make the page; false if it may not be dropped.
bool Recipes::may_drop(const ManagedStorage& page, Needs& needs) {
  return page.value && !page.is_newly_made && are_kept() &&
      gather(*page.value, needs) &&
      needs.chained + page.value->above < kMostChained;
}

uint32_t Recipes::gain_by(const Needs& needs, size_t bytes) {
  constexpr uint64_t kMost = std::numeric_limits<uint8_t>::max();
  if (!needs.is_timed) {
    return 0;
  }
  const double copy = copy_ns() * static_cast<double>(bytes);
  return static_cast<uint32_t>(
      std::min(kMost, static_cast<uint64_t>(copy) / needs.ns));
}

uint32_t Recipes::gain(const ManagedStorage& page) {
  Needs needs;
  return may_drop(page, needs) ? gain_by(needs, page.bytes) : 0;
}

bool Recipes::give_up(ManagedStorage* page, bool at_any_cost) {
  Needs needs;
  if (Settings::get().verify() || !may_drop(*page, needs) ||
      (!at_any_cost && gain_by(needs, page->bytes) == 0)) {
    return false;
  }
  let_go_of_sources(page); // of an attempt that failed
  page->sources = std::move(needs.sources);
  for (const ValuePtr& source : page->sources) {
    ++source->needed;
    raise(*source, page->value->above + 1);
  }
  dropped_.fetch_add(1);
  return true;
}

void Recipes::let_go_of_sources(ManagedStorage* page) {
  if (page->sources.empty()) {
    return;
  }
  dropped_.fetch_sub(1);
  for (const ValuePtr& source : page->sources) {
    if (--source->needed > 0) {
      continue;
    }
    source->above = 0;
    if (source->holder && source->holder->orphan) {
      orphans_.push_back(std::move(source->holder->orphan));
      has_orphans_.store(true);
    }
  }
  page->sources.clear();
}

bool Recipes::note_write(ManagedStorage* record) {
  if (record->value && record->value->needed > 0) {
    return false;
  }
  if (record->value) {
    lose(*record->value);
  }
  record->overwritten = std::exchange(record->value, nullptr);
  return true;
}

// No storage holds it any more. Where each value is made from the one before, a
// chain of those that nobody holds would grow for ever.
void Recipes::lose(Value& value) {
  value.holder = nullptr;
  if (steps_to_make(value) > kMostSteps) {
    value.recipe.reset();
  }
}

// Operators to run, more than kMostSteps if it cannot be made.
int Recipes::steps_to_make(const Value& value) {
  if (!value.recipe) {
    return kMostSteps + 1;
  }
  int steps = 1;
  for (const Recipe::Argument& argument : value.recipe->tensors()) {
    if (steps <= kMostSteps && !argument.value->holder) {
      steps += steps_to_make(*argument.value);
    }
  }
  return steps;
}

bool Recipes::may_end(ManagedStorage* record) {
  if (!record->value || record->value->needed == 0) {
    return true;
  }
  record->move_to_orphan();
  return false;
}

void Recipes::end(ManagedStorage* record) {
  let_go_of_sources(record);
  if (record->value) {
    lose(*record->value);
    record->value.reset();
  }
}

} // namespace at::cuda::lms
