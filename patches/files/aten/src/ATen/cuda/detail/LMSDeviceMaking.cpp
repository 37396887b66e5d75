#include <ATen/cuda/detail/LMSDeviceRecipes.h>

#include <ATen/cuda/detail/LMSAllocatorErrors.h>
#include <ATen/cuda/detail/LMSDevice.h>
#include <ATen/cuda/detail/LMSOperatorTouched.h>
#include <ATen/record_function.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>

// Making bytes again, without the mutex.

namespace at::cuda::lms {
namespace {

std::atomic<int64_t> compared_count{0};
std::mutex differing_mutex; // no other is taken under it
std::set<std::string>& differing_names() {
  static auto* names = new std::set<std::string>(); // leaked: read at the end
  return *names;
}

const Recipe& recipe_of(const Value& value) {
  return static_cast<const Recipe&>(*value.recipe);
}

} // namespace

void Recipes::prepare(const Accesses& accesses) {
  free_orphans();
  for (const Access& access : accesses) {
    ManagedStorage* record = nullptr;
    bool is_dropped = false;
    bool is_needed = false;
    {
      const Lock lock(device_.mutex());
      record = managed(access.storage);
      is_dropped = record && record->dropped;
      is_needed = record && access.writes && Values::is_needed(*record);
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
  make_sources(*page);
  if (!device_.pager().fetcher.begin_making(page)) {
    return;
  }
  ValuePtr value;
  {
    const Lock lock(device_.mutex());
    value = page->value;
  }
  Freed freed(device_.pager().books.contention);
  RECORD_USER_SCOPE_WITH_INPUTS(
      "lms::recompute",
      std::vector<c10::IValue>{static_cast<int64_t>(page->bytes)});
  try {
    const c10::cuda::CUDAGuard guard(device_.index());
    cudaStream_t stream = current_stream(device_.index());
    Event begin = record_timed_event(device_.index(), stream);
    const auto made = run(*value);
    const at::Tensor tensor = made.at(value->result).toTensor();
    auto* storage = tensor.storage().unsafeGetStorageImpl();
    c10::DataPtr& memory = storage->_mutable_data_ptr_no_checks();
    TORCH_INTERNAL_ASSERT(
        storage->nbytes() == page->bytes && memory.get() &&
            memory.get() == memory.get_context(),
        "Large Model Support ran ",
        recipe_of(*value).name(),
        " again and got other memory");
    Event end = record_timed_event(device_.index(), stream);
    const Lock lock(device_.mutex());
    if (Trace* report = Trace::report_of(device_.index())) {
      report->add_made(*page, recipe_of(*value).name(), stream, begin, end);
    }
    device_.world().times().add(Activity::kMake, std::move(begin), end);
    let_go_of_sources(*page);
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

// The dropped pages that it is made from, before anything is allocated for it:
// if each step of a long row began with the next one, the results of all would
// be in the making at once.
void Recipes::make_sources(const ManagedStorage& page) {
  const size_t made = make_all([&] { return dropped_sources_of(page); });
  made_as_sources_.fetch_add(made, std::memory_order_relaxed);
}

Recipes::Storages Recipes::dropped_sources_of(const ManagedStorage& page) {
  Storages storages;
  const Lock lock(device_.mutex());
  for (const ValuePtr& value : page.sources) {
    if (value->holder && managed(value->holder)->dropped) {
      storages.push_back(managed(value->holder)->storage);
    }
  }
  return storages;
}

// Makes what is listed, until nothing is any more. Returns the bytes.
size_t Recipes::make_all(c10::function_ref<Storages()> list) {
  size_t made = 0;
  for (auto storages = list(); !storages.empty(); storages = list()) {
    for (const auto& weak : storages) {
      auto storage = weak.lock();
      if (!storage) { // dying on another thread
        std::this_thread::yield();
      } else if (ManagedStorage* page = managed(storage.get())) {
        made += page->bytes;
        make(page);
      }
    }
  }
  return made;
}

// The results of the value's recipe.
torch::jit::Stack Recipes::run(const Value& value) {
  std::vector<at::Tensor> tensors;
  std::vector<std::pair<const Value*, c10::Storage>> made; // for the moment
  const Recipe& recipe = recipe_of(value);
  for (size_t i = 0; i < recipe.values.size(); ++i) {
    const ValuePtr& source = recipe.values[i];
    const auto same =
        std::find_if(made.begin(), made.end(), [&](const auto& one) {
          return one.first == source.get();
        });
    if (same == made.end()) {
      made.emplace_back(source.get(), storage_of(source));
      tensors.push_back(tensor_on(made.back().second, recipe.tensors()[i]));
    } else {
      tensors.push_back(tensor_on(same->second, recipe.tensors()[i]));
    }
  }
  try {
    return recipe.run(tensors);
  } catch (const Uncatchable& error) {
    give_up_request();
    TORCH_CHECK_WITH(OutOfMemoryError, false, error.what());
  }
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
      weak = managed(value->holder)->storage;
    }
    if (auto storage = weak.lock()) {
      return {std::move(storage)};
    }
    // It is dying on another thread, which will keep the bytes.
    std::this_thread::yield();
  }
  return run(*value).at(value->result).toTensor().storage();
}

Recipes::Storages Recipes::dependents_of(const ManagedStorage& source) {
  Storages storages;
  const Lock lock(device_.mutex());
  for (PageEntry* page : Values::dependents_of(source)) {
    storages.push_back(managed(page)->storage);
  }
  return storages;
}

void Recipes::make_dependents(ManagedStorage* source) {
  make_all([&] { return dependents_of(*source); });
}

void Recipes::verify(ManagedStorage* page) {
  ValuePtr value;
  {
    const Lock lock(device_.mutex());
    if (!can_be_made(*page)) {
      return;
    }
    value = page->value;
  }
  const c10::cuda::CUDAGuard guard(device_.index());
  cudaStream_t stream = current_stream(device_.index());
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
  ++compared_count;
  if (copied != again) {
    const std::lock_guard<std::mutex> lock(differing_mutex);
    differing_names().insert(
        recipe_of(*value).name() + ", result " + std::to_string(value->result));
  }
}

int64_t Recipes::compared() {
  return compared_count;
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
