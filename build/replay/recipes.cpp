#include "recipes.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace lms_replay {
namespace {

using namespace at::cuda::lms;

constexpr Time kNanosecond = 1000; // picoseconds

// An operator of the trace. The first of its values are what it overwrote.
struct OperatorRecipe final : Ingredients {
  size_t op = 0;
  std::vector<uint32_t> overwritten; // the storages, by value
  std::vector<uint32_t> results; // storages that were allocated for it
};

const OperatorRecipe& recipe_of(const Value& value) {
  return static_cast<const OperatorRecipe&>(*value.recipe);
}

TracePage* page_of(PageEntry* page) {
  return static_cast<TracePage*>(page);
}

template <class List, class Element>
bool has(const List& list, const Element& element) {
  return std::find(list.begin(), list.end(), element) != list.end();
}

uint64_t nanoseconds(Time time) {
  return static_cast<uint64_t>(std::max<Time>(1, time / kNanosecond));
}

} // namespace

// --- pins ---

void Recipes::pin(const Accesses& accesses) {
  try {
    try_pin(accesses);
    return;
  } catch (const NoRoom&) { // NOLINT(bugprone-empty-catch)
    // What was pinned may have stood in the way of the rest.
  }
  pager_.reclaimer.reclaim({}, Scope::kAll, /*may_wait=*/true);
  try_pin(accesses);
}

void Recipes::try_pin(const Accesses& accesses) {
  prepare(accesses);
  Accesses absent;
  {
    const Lock lock(pager_.books.mutex);
    for (const Access& access : accesses) {
      if (!access.page->is_paged) {
        continue;
      }
      pager_.pin(access.page);
      if (access.page->resident) {
        pager_.residence.note_access(access.page, access.writes, nullptr);
      } else {
        absent.push_back(access);
      }
    }
  }
  try {
    for (const Access& access : absent) {
      bring(access.page);
      const Lock lock(pager_.books.mutex);
      pager_.residence.note_access(access.page, access.writes, nullptr);
    }
    note_writes(accesses);
  } catch (const NoRoom&) {
    Freed freed(pager_.books.contention);
    const Lock lock(pager_.books.mutex);
    unpin(accesses, freed);
    throw;
  }
}

void Recipes::unpin(const Accesses& accesses, Freed& freed) {
  auto next = accesses.begin();
  const auto next_page = [&]() -> TracePage* {
    next = std::find_if(next, accesses.end(), [](const Access& access) {
      return access.page->is_paged;
    });
    return next == accesses.end() ? nullptr : (next++)->page;
  };
  pager_.unpin(next_page, freed);
}

// Nothing is pinned yet: there is most room to make things now.
void Recipes::prepare(const Accesses& accesses) {
  if (!is_any_dropped()) {
    return;
  }
  for (const Access& access : accesses) {
    make(access.page);
    if (access.writes) {
      make_dependents(access.page);
    }
  }
}

void Recipes::bring(TracePage* page) {
  while (!pager_.fetcher.fetch(page)) {
    make(page);
  }
}

void Recipes::note_writes(const Accesses& accesses) {
  for (const Access& access : accesses) {
    while (access.writes && !note_write(*access.page)) {
      make_dependents(access.page);
    }
  }
}

// --- what can be made ---

void Recipes::keep(
    size_t op,
    const Pages& pages,
    const std::vector<uint32_t>& allocated) {
  const auto uses = trace_.uses_of(op);
  const auto is_again = [](const TraceUse& use) { return use.again; };
  if (!are_kept() || std::none_of(uses.begin(), uses.end(), is_again)) {
    return;
  }
  auto recipe = std::make_shared<OperatorRecipe>();
  recipe->op = op;
  std::vector<ValuePtr> read;
  for (const TraceUse& use : uses) {
    TracePage& page = *pages[use.storage];
    if (!use.writes) {
      read.push_back(value_of(page));
    } else if (has(allocated, use.storage)) {
      recipe->results.push_back(use.storage);
    } else if (use.again) { // in place
      if (!page.overwritten || !page.overwritten->recipe) {
        return;
      }
      recipe->overwritten.push_back(use.storage);
      recipe->values.push_back(page.overwritten);
    }
  }
  recipe->values.insert(recipe->values.end(), read.begin(), read.end());
  for (const TraceUse& use : uses) {
    if (use.again) {
      note_made(*pages[use.storage], recipe, use.storage);
    }
  }
}

uint64_t Recipes::ns_of(const Ingredients& recipe) const {
  const size_t op = static_cast<const OperatorRecipe&>(recipe).op;
  return nanoseconds(trace_.operators[op].duration);
}

void Recipes::tell_times(size_t op, Operator& told) {
  told.clock = {};
  told.ns = 0;
  if (are_kept()) {
    told.clock = world_.clock();
    told.ns = static_cast<uint32_t>(std::min<uint64_t>(
        nanoseconds(trace_.operators[op].duration),
        std::numeric_limits<uint32_t>::max()));
  }
}

// --- making ---

// Does nothing unless the page is dropped.
void Recipes::make(TracePage* page) {
  if (!pager_.fetcher.begin_making(page)) {
    return;
  }
  const ValuePtr value = page->value;
  Freed freed(pager_.books.contention);
  try {
    Memory memory = run(*value);
    const Lock lock(pager_.books.mutex);
    let_go_of_sources(*page);
    pager_.residence.put_back(
        page,
        std::move(memory),
        /*stream=*/nullptr,
        world_.queued(nullptr).front(),
        freed);
    pager_.books.stats.made.add(page->bytes);
  } catch (...) {
    const Lock lock(pager_.books.mutex);
    pager_.residence.stay_dropped(page);
    throw;
  }
  end_needless();
}

// One at a time: with one, others may be needed no more.
void Recipes::make_dependents(TracePage* source) {
  for (auto left = dependents_of(*source); !left.empty();
       left = dependents_of(*source)) {
    make(page_of(left.front()));
  }
}

// Runs the operator that made the value again. Returns the memory of that.
DeviceMemory Recipes::run(const Value& value) {
  const OperatorRecipe& recipe = recipe_of(value);
  Accesses sources;
  std::map<const Value*, Memory> moment; // made for it
  for (const ValuePtr& source : recipe.values) {
    if (!source->holder) {
      if (moment.count(source.get()) == 0) {
        moment.emplace(source.get(), run(*source));
      }
    } else if (page_of(source->holder)->is_paged) {
      sources.push_back({page_of(source->holder), /*writes=*/false});
    }
  }
  pin(sources);
  Memory made;
  std::vector<Memory> others; // results that are not wanted
  try {
    for (const uint32_t result : recipe.results) {
      Memory& memory = result == value.result ? made : others.emplace_back();
      memory = allocate(result);
    }
  } catch (const NoRoom&) {
    Freed freed(pager_.books.contention);
    const Lock lock(pager_.books.mutex);
    unpin(sources, freed);
    throw;
  }
  for (size_t i = 0; i < recipe.overwritten.size(); ++i) {
    if (recipe.overwritten[i] == value.result) {
      made = std::move(moment.at(recipe.values[i].get()));
    }
  }
  const Time duration = trace_.operators[recipe.op].duration;
  world_.launch(recipe.op, duration, value.result);
  time_ += duration;
  Freed freed(pager_.books.contention);
  const Lock lock(pager_.books.mutex);
  pager_.books.map.note_unmanaged();
  unpin(sources, freed);
  return made;
}

// Of a storage that is not paged nothing is needed.
DeviceMemory Recipes::allocate(uint32_t storage) {
  const size_t bytes = trace_.bytes[storage];
  return is_paged(bytes) ? world_.allocate_for_operator(storage, bytes)
                         : Memory();
}

// --- ends ---

void Recipes::end(std::unique_ptr<TracePage> page) {
  if (is_kept(*page)) {
    const TracePage* key = page.get();
    kept_.emplace(key, std::move(page));
    return;
  }
  needless_.push_back(std::move(page));
  end_needless();
}

void Recipes::on_needless(PageEntry& page) {
  const auto kept = kept_.find(&page);
  if (kept != kept_.end()) {
    needless_.push_back(std::move(kept->second));
    kept_.erase(kept);
  }
}

// With one, others may become needless.
void Recipes::end_needless() {
  while (!needless_.empty()) {
    std::unique_ptr<TracePage> page = std::move(needless_.back());
    needless_.pop_back();
    Freed freed(pager_.books.contention);
    const Lock lock(pager_.books.mutex);
    const uint32_t gain = this->gain(*page);
    forget(*page);
    if (!page->is_paged) {
      continue;
    }
    if (page->state == PageEntry::State::kResident) {
      pager_.residence.free_while_used(page.get(), freed);
    }
    pager_.books.policy->on_death(page.get(), static_cast<uint8_t>(gain));
    pager_.residence.end(page.release(), freed);
  }
}

} // namespace lms_replay
