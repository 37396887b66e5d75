#include <ATen/cuda/detail/LMSDeviceRecipes.h>

#include <ATen/cuda/detail/LMSCudaCaptures.h>
#include <ATen/cuda/detail/LMSDevice.h>
#include <ATen/cuda/detail/LMSOperatorTouched.h>
#include <ATen/cuda/detail/LMSSettings.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

namespace at::cuda::lms {
namespace {

std::mutex differing_mutex; // no other is taken under it
std::set<std::string>& differing_names() {
  static auto* names = new std::set<std::string>(); // leaked: read at the end
  return *names;
}

// A tensor that has the bytes of an argument, in the storage of its value.
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

} // namespace

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
    // One that an argument has, too, has a value.
    if (record && !record->value && record->is_watched &&
        &record->device == &device_ && recipe->complete(results, i)) {
      record->value = std::make_shared<Value>();
      record->value->holder = record;
      record->value->recipe = recipe;
      record->value->result = i;
    }
  }
}

void Recipes::tell_times(Operator& op) {
  Times& times = device_.world().times();
  const TimesSpent& totals = times.totals();
  op.elapsed_us = times.elapsed_us();
  op.stalled_us = 0;
  for (const Activity wait :
       {Activity::kWaitForDemand,
        Activity::kWaitForAhead,
        Activity::kWaitForMemory}) {
    op.stalled_us += totals.at(static_cast<size_t>(wait)).us;
  }
}

Recipes::Timing Recipes::begin_timing(const Recipe& recipe) {
  Timing timing;
  {
    const Lock lock(device_.mutex());
    collect_times();
    if (pending_.size() >= kMostPending ||
        times_[recipe.signature()].wanted == 0) {
      return timing;
    }
    timing.waits = device_.world().waits();
  }
  timing.begin =
      record_timed_event(device_.index(), current_stream(device_.index()));
  return timing;
}

void Recipes::end_timing(const Recipe& recipe, Timing timing) {
  if (!timing.begin) {
    return;
  }
  Event end =
      record_timed_event(device_.index(), current_stream(device_.index()));
  const Lock lock(device_.mutex());
  // If the stream waited, for memory most often, it was not the operator alone.
  if (timing.waits == device_.world().waits()) {
    --times_[recipe.signature()].wanted;
    pending_.push_back(
        {recipe.signature(), std::move(timing.begin), std::move(end)});
  }
}

void Recipes::collect_times() {
  while (!pending_.empty() && has_happened(pending_.front().end)) {
    const Span& span = pending_.front();
    const double us = microseconds_between(span.begin, span.end);
    const auto ns = std::max<uint64_t>(1, static_cast<uint64_t>(1000 * us));
    uint64_t& least = times_[span.signature].ns;
    least = least == 0 ? ns : std::min(least, ns);
    pending_.pop_front();
  }
}

// --- dropping, with the mutex ---

// How many dropped pages have to be made, each from the next, before the value
// is there.
int Recipes::chain_below(const Value& value) {
  if (!value.holder || !value.holder->is_given_up) {
    return 0;
  }
  int longest = 0;
  for (const ValuePtr& source : value.holder->sources) {
    longest = std::max(longest, chain_below(*source));
  }
  return longest + 1;
}

// So many dropped pages in a row are made from the value.
void Recipes::raise(Value& value, int above) {
  if (value.above >= above) {
    return;
  }
  value.above = above;
  if (value.holder && value.holder->is_given_up) {
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
  const auto time = times_.find(value.recipe->signature());
  if (time == times_.end() || time->second.ns == 0) {
    needs.is_timed = false;
  } else {
    needs.ns += time->second.ns;
  }
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

// Of a copy to the host, as far as is known.
uint64_t Recipes::copy_ns(size_t bytes) {
  constexpr double kNsPerByte = 1.0 / 12; // of PCIe 3.0, until one has ended
  const auto& copies = device_.world().times().totals().at(
      static_cast<size_t>(Activity::kPageOut));
  const auto copied = device_.pager().books.stats.paged_out.bytes;
  const double per_byte = copies.us > 0 && copied > 0
      ? 1000 * copies.us / static_cast<double>(copied)
      : kNsPerByte;
  return static_cast<uint64_t>(per_byte * static_cast<double>(bytes));
}

// What it takes to make the page; false if it may not be dropped.
bool Recipes::may_drop(const ManagedStorage& page, Needs& needs) {
  return page.value && !page.is_newly_made && are_kept() &&
      gather(*page.value, needs) &&
      needs.chained + page.value->above < kMostChained;
}

uint32_t Recipes::gain_by(const Needs& needs, size_t bytes) {
  constexpr uint64_t kMost = std::numeric_limits<uint8_t>::max();
  return needs.is_timed
      ? static_cast<uint32_t>(std::min(kMost, copy_ns(bytes) / needs.ns))
      : 0;
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
  page->is_given_up = true;
  for (const ValuePtr& source : page->sources) {
    ++source->needed;
    raise(*source, page->value->above + 1);
  }
  dropped_.fetch_add(1);
  return true;
}

void Recipes::let_go_of_sources(ManagedStorage* page) {
  if (!page->is_given_up) {
    return;
  }
  page->is_given_up = false;
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
    lose(record->value);
  }
  return true;
}

// No storage holds it any more. Where each value is made from the one before, a
// chain of those that nobody holds would grow for ever.
void Recipes::lose(ValuePtr& value) {
  value->holder = nullptr;
  if (steps_to_make(*value) > kMostSteps) {
    value->recipe.reset();
  }
  value.reset();
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
    lose(record->value);
  }
}

// --- making, without the mutex ---

void Recipes::prepare(const Accesses& accesses) {
  free_orphans();
  for (const Access& access : accesses) {
    ManagedStorage* record = managed(access.storage);
    if (!record) {
      continue;
    }
    bool is_dropped = false;
    bool is_needed = false;
    {
      const Lock lock(device_.mutex());
      is_dropped = record->dropped;
      is_needed = access.writes && record->value && record->value->needed > 0;
    }
    if (is_dropped) {
      make(record);
    }
    if (is_needed) {
      make_dependents(record);
    }
  }
}

void Recipes::make(ManagedStorage* page) {
  if (!device_.pager().fetcher.begin_making(page)) {
    return;
  }
  ValuePtr value;
  {
    const Lock lock(device_.mutex());
    value = page->value;
  }
  Freed freed(device_.pager().books.contention);
  try {
    const c10::cuda::CUDAGuard guard(device_.index());
    const cudaStream_t stream = current_stream(device_.index());
    Event begin = record_timed_event(device_.index(), stream);
    auto made = run(*value);
    const at::Tensor tensor = made.at(value->result).toTensor();
    auto* storage = tensor.storage().unsafeGetStorageImpl();
    c10::DataPtr& memory = storage->_mutable_data_ptr_no_checks();
    TORCH_INTERNAL_ASSERT(
        storage->nbytes() == page->bytes && memory.get() &&
            memory.get() == memory.get_context(),
        "Large Model Support ran ",
        value->recipe->name(),
        " again and got other memory");
    Event end = record_timed_event(device_.index(), stream);
    const Lock lock(device_.mutex());
    device_.world().times().add(Activity::kMake, std::move(begin), end);
    let_go_of_sources(page);
    device_.pager().residence.put_back(
        page,
        DeviceMemory(memory.release_context(), FreeMemory{&device_.world()}),
        stream,
        std::move(end),
        freed);
    device_.loans().take_over(page);
    auto& stats = device_.pager().books.stats;
    stats.made.add(page->bytes);
  } catch (...) {
    {
      const Lock lock(device_.mutex());
      device_.pager().residence.stay_dropped(page);
    }
    device_.pager().fetcher.end_making();
    throw;
  }
  device_.pager().fetcher.end_making();
  free_orphans();
}

// The results of the value's recipe.
torch::jit::Stack Recipes::run(const Value& value) {
  std::vector<at::Tensor> tensors;
  std::vector<std::pair<const Value*, c10::Storage>> made; // for the moment
  for (const Recipe::Argument& argument : value.recipe->tensors()) {
    const auto same =
        std::find_if(made.begin(), made.end(), [&](const auto& one) {
          return one.first == argument.value.get();
        });
    if (same == made.end()) {
      made.emplace_back(argument.value.get(), storage_of(argument.value));
      tensors.push_back(tensor_on(made.back().second, argument));
    } else {
      tensors.push_back(tensor_on(same->second, argument));
    }
  }
  return value.recipe->run(tensors);
}

// A storage that has the bytes of the value: its holder's, or one that is made.
c10::Storage Recipes::storage_of(const ValuePtr& value) {
  while (true) {
    c10::weak_intrusive_ptr<c10::StorageImpl> weak{
        c10::intrusive_ptr<c10::StorageImpl>()};
    {
      const Lock lock(device_.mutex());
      if (!value->holder) {
        break;
      }
      weak = value->holder->storage;
    }
    if (auto storage = weak.lock()) {
      return c10::Storage(std::move(storage));
    }
    // It is dying on another thread, which will keep the bytes.
    std::this_thread::yield();
  }
  return run(*value).at(value->result).toTensor().storage();
}

std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> Recipes::dependents_of(
    const ManagedStorage& source) {
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> dependents;
  const Lock lock(device_.mutex());
  if (!source.value || source.value->needed == 0) {
    return dependents;
  }
  source.value->is_ending = true;
  for (PageEntry* entry : device_.pager().books.pages.all()) {
    const auto& sources = managed(entry)->sources;
    if (std::find(sources.begin(), sources.end(), source.value) !=
        sources.end()) {
      dependents.push_back(managed(entry)->storage);
    }
  }
  return dependents;
}

void Recipes::make_dependents(ManagedStorage* source) {
  for (auto dependents = dependents_of(*source); !dependents.empty();
       dependents = dependents_of(*source)) {
    for (const auto& weak : dependents) {
      auto storage = weak.lock();
      if (!storage) { // dying on another thread
        std::this_thread::yield();
      } else if (ManagedStorage* page = managed(storage.get())) {
        make(page);
      }
    }
  }
}

void Recipes::verify(ManagedStorage* page) {
  ValuePtr value;
  {
    const Lock lock(device_.mutex());
    Needs needs;
    if (!may_drop(*page, needs)) {
      return;
    }
    value = page->value;
  }
  const c10::cuda::CUDAGuard guard(device_.index());
  const cudaStream_t stream = current_stream(device_.index());
  const at::Tensor made = run(*value).at(value->result).toTensor();
  std::vector<char> copied(page->bytes);
  std::vector<char> again(page->bytes);
  const auto to_host = [stream](std::vector<char>& host, const void* device) {
    C10_CUDA_CHECK(cudaMemcpyAsync(
        host.data(), device, host.size(), cudaMemcpyDeviceToHost, stream));
  };
  synchronize(device_.arrival_of(page));
  to_host(copied, page->memory.get());
  to_host(again, made.storage().unsafeGetStorageImpl()->data());
  // The host waits because it compares.
  synchronize(stream);
  if (copied != again) {
    const std::lock_guard<std::mutex> lock(differing_mutex);
    differing_names().insert(value->recipe->name());
  }
}

std::vector<std::string> Recipes::differing() {
  const std::lock_guard<std::mutex> lock(differing_mutex);
  return {differing_names().begin(), differing_names().end()};
}

void Recipes::free_orphans() {
  if (!has_orphans_.load(std::memory_order_relaxed)) {
    return;
  }
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> orphans;
  const Lock lock(device_.mutex());
  orphans.swap(orphans_);
  has_orphans_.store(false);
}

} // namespace at::cuda::lms
