#include <ATen/cuda/detail/LMSCoreValues.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace at::cuda::lms {

bool Values::are_kept() const {
  const Traits& traits = books_.world.traits();
  return traits.makes_again && is_allowed() &&
      (traits.evicts_all ||
       books_.has_been_short.load(std::memory_order_relaxed));
}

const ValuePtr& Values::value_of(PageEntry& page) {
  if (!page.value) {
    page.value = std::make_shared<Value>();
    page.value->holder = &page;
  }
  return page.value;
}

void Values::note_made(
    PageEntry& page,
    std::shared_ptr<const Ingredients> recipe,
    size_t result) {
  const ValuePtr& value = value_of(page);
  value->recipe = std::move(recipe);
  value->result = result;
  for (const ValuePtr& source : value->recipe->values) {
    source->made += page.bytes;
  }
  extend_row(*value, page.bytes);
}

// The value has been made. See Note [Rows of dropped pages].
void Values::extend_row(Value& value, size_t bytes) {
  int longest = 0;
  int shortest = kMostInRow;
  bool ends_before = false; // with a step in place before this one
  for (const ValuePtr& source : value.recipe->values) {
    const bool is_here = source->holder != nullptr;
    const int row = is_here ? (source->ends_row ? 0 : source->row)
                            : std::max(0, source->row - 1);
    ends_before = ends_before || (!is_here && source->ends_row);
    longest = std::max(longest, row);
    // What is much smaller is no part of a sum.
    if (is_here ? source->holder->bytes >= bytes / 2
                : source->recipe != nullptr) {
      shortest = std::min(shortest, row);
    }
  }
  value.row = longest + 1;
  const bool ends_skip = longest >= shortest + kSkipped || ends_before;
  value.ends_row = value.row >= (ends_skip ? kMostInRow / 2 : kMostInRow);
}

// --- what it takes ---

// What it takes to make the value; false if it cannot be made.
bool Values::gather(const Value& value, Needs& needs) const {
  if (!value.recipe || ++needs.steps > kMostSteps) {
    return false;
  }
  const uint64_t ns = ns_of(*value.recipe);
  needs.ns += ns;
  needs.is_timed = needs.is_timed && ns > 0;
  for (const ValuePtr& source : value.recipe->values) {
    if (!source->holder) {
      if (!gather(*source, needs)) {
        return false;
      }
      continue;
    }
    if (source->is_ending || !source->holder->is_watched) {
      return false;
    }
    if (std::find(needs.sources.begin(), needs.sources.end(), source) ==
        needs.sources.end()) {
      needs.sources.push_back(source);
    }
  }
  return true;
}

// What it takes to make the page; false if it may not be dropped.
bool Values::may_drop(const PageEntry& page, Needs& needs) const {
  return page.value && page.hint.again != Hint::Again::kNever &&
      !page.is_newly_made && are_kept() && !page.value->ends_row &&
      gather(*page.value, needs);
}

bool Values::can_be_made(const PageEntry& page) {
  Needs needs;
  return may_drop(page, needs);
}

uint32_t Values::gain_by(const Needs& needs, const PageEntry& page) {
  constexpr uint64_t kMost = std::numeric_limits<uint8_t>::max();
  const uint64_t least =
      page.hint.again == Hint::Again::kPreferred ? kMostCopied : 0;
  if (!needs.is_timed) {
    return static_cast<uint32_t>(least);
  }
  const double copy = copy_ns() * static_cast<double>(page.bytes);
  return static_cast<uint32_t>(
      std::clamp(static_cast<uint64_t>(copy) / needs.ns, least, kMost));
}

uint32_t Values::gain(const PageEntry& page) {
  Needs needs;
  return may_drop(page, needs) ? gain_by(needs, page) : 0;
}

// --- dropping ---

bool Values::give_up(PageEntry& page, bool at_any_cost) {
  Needs needs;
  if (!may_drop(page, needs) || (!at_any_cost && gain_by(needs, page) == 0)) {
    return false;
  }
  let_go_of_sources(page); // of an attempt that failed
  page.sources = std::move(needs.sources);
  for (const ValuePtr& source : page.sources) {
    source->needed_by.push_back(&page);
    tell_when_needed(*source);
  }
  dropped_.fetch_add(1);
  return true;
}

void Values::let_go_of_sources(PageEntry& page) {
  if (page.sources.empty()) {
    return;
  }
  dropped_.fetch_sub(1);
  for (const ValuePtr& source : page.sources) {
    auto& needed_by = source->needed_by;
    needed_by.erase(std::find(needed_by.begin(), needed_by.end(), &page));
    tell_when_needed(*source);
    end_if_needless(*source);
  }
  page.sources.clear();
}

// The policy, of when the first page is made from it.
void Values::tell_when_needed(const Value& source) {
  PageEntry* holder = source.holder;
  if (!holder) {
    return;
  }
  uint64_t at = Page::kNever;
  for (const PageEntry* page : source.needed_by) {
    at = std::min(at, page->needed_at());
  }
  constexpr uint64_t kSoon = 32; // operators
  if (holder->next_use - std::min(holder->next_use, at) < kSoon) {
    at = Page::kNever; // it comes for its own use, which is planned
  }
  if (at != holder->makes_at) {
    books_.policy->note_source(*holder, at);
    for (const ValuePtr& before : holder->sources) { // it is dropped, too
      tell_when_needed(*before);
    }
  }
}

void Values::end_if_needless(const Value& source) {
  if (source.holder && !is_kept(*source.holder)) {
    on_needless(*source.holder);
  }
}

std::vector<PageEntry*> Values::dependents_of(const PageEntry& page) const {
  if (!is_needed(page)) {
    return {};
  }
  page.value->is_ending = true;
  return page.value->needed_by;
}

// --- the end of values ---

bool Values::note_write(PageEntry& page, bool is_inside) {
  if (is_needed(page)) {
    return false;
  }
  if (page.value) {
    lose(*page.value);
  }
  if (page.value || !is_inside) {
    page.overwritten = std::exchange(page.value, nullptr);
  }
  return true;
}

// No page holds it any more. Where each value is made from the one before, a
// chain of those that nobody holds would grow for ever.
void Values::lose(Value& value) {
  const PageEntry& page = *std::exchange(value.holder, nullptr);
  if (!value.recipe) {
    return;
  }
  for (const ValuePtr& source : value.recipe->values) {
    source->made -= page.bytes;
    end_if_needless(*source);
  }
  if (steps_to_make(value) > kMostSteps) {
    value.recipe.reset();
  }
}

// Operators to run, more than kMostSteps if it cannot be made.
int Values::steps_to_make(const Value& value) {
  if (!value.recipe) {
    return kMostSteps + 1;
  }
  int steps = 1;
  for (const ValuePtr& source : value.recipe->values) {
    if (steps <= kMostSteps && !source->holder) {
      steps += steps_to_make(*source);
    }
  }
  return steps;
}

void Values::forget(PageEntry& page) {
  let_go_of_sources(page);
  if (page.value) {
    lose(*page.value);
    page.value.reset();
  }
}

} // namespace at::cuda::lms
