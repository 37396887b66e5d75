#include <ATen/cuda/detail/LMSHistory.h>

#include <algorithm>

namespace at::cuda::lms {
namespace {

constexpr uint64_t kPrime = 0x9E3779B97F4A7C15; // 2^64 / golden ratio, odd

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * kPrime;
  return hash ^ (hash >> 29);
}

constexpr uint64_t power(uint64_t base, uint64_t exponent) {
  return exponent == 0 ? 1 : base * power(base, exponent - 1);
}

} // namespace

History::Slot& History::slot_of(const Page& page) {
  return slots_[page.last_slot - dropped_slots_];
}

void History::append(const Operator& op) {
  ++now_;
  Entry& entry = entries_.emplace_back();
  entry.first_slot = dropped_slots_ + slots_.size();
  entry.unmanaged = op.unmanaged;
  uint64_t kind = mix(op.name, op.uses.size());
  uint64_t ages = 0;
  uint64_t names = 0;
  for (const Use& use : op.uses) {
    Page& page = *use.page;
    if (page.last_use == now_) {
      continue; // named twice
    }
    Slot slot;
    slot.page = &page;
    slot.bytes = page.bytes;
    const bool is_known = page.last_use > 0 && page.last_slot >= dropped_slots_;
    if (is_known) {
      slot.previous = static_cast<uint32_t>(now_ - page.last_use);
      Slot& before = slot_of(page);
      before.next = slot.previous;
      before.next_slot = entry.slots;
      slot.previous_slot = static_cast<uint32_t>(
          page.last_slot - this->entry(page.last_use).first_slot);
    }
    if (page.first_use == 0) {
      page.first_use = now_;
    } else if (now_ - page.first_use >= kLasting) {
      names = mix(names, entry.slots * kPrime + page.id);
    }
    page.last_use = now_;
    page.last_slot = dropped_slots_ + slots_.size();
    slots_.push_back(slot);
    ++entry.slots;
    entry.longest = std::max<uint64_t>(entry.longest, slot.previous);
    kind = mix(kind, page.bytes * 2 + (use.writes ? 1 : 0));
    ages = mix(ages, slot.previous);
  }
  entry.kind = kind;
  entry.hash[kByName] = mix(kind, names);
  entry.hash[kByAge] = mix(kind, ages);
  find_windows();
  if (names == 0) {
    entry.window[kByName] = 0;
  }
  follow();
  trim();
}

void History::on_death(Page* page) {
  if (page->last_use == 0 || page->last_slot < dropped_slots_) {
    return;
  }
  Slot& slot = slot_of(*page);
  slot.page = nullptr;
  slot.is_dead = true;
  slot.death = static_cast<uint32_t>(now_ - page->last_use);
}

void History::find_windows() {
  Entry& latest = entries_.back();
  for (const Likeness by : {kByName, kByAge}) {
    window_[by] = window_[by] * kPrime + latest.hash[by];
    if (now_ > kWindow && has(now_ - kWindow)) {
      window_[by] -= entry(now_ - kWindow).hash[by] * power(kPrime, kWindow);
    }
    latest.window[by] = window_[by];
  }
}

void History::follow() {
  const Entry& latest = entries_.back();
  if (lag_ > 0 && has(now_ - lag_) && entry(now_ - lag_).kind == latest.kind &&
      latest.longest <= lag_) {
    ++matched_;
  } else {
    find_lag();
  }
  for (const uint64_t window : latest.window) {
    windows_[window] = now_;
  }
}

void History::find_lag() {
  lag_ = find_lag(kByName);
  if (lag_ == 0) {
    lag_ = find_lag(kByAge);
  }
  matched_ = lag_ > 0 ? kWindow : 0;
}

// 0 if there is none.
uint64_t History::find_lag(Likeness by) const {
  const uint64_t window = entries_.back().window[by];
  const auto found = windows_.find(window);
  if (window == 0 || found == windows_.end() || !has(found->second)) {
    return 0;
  }
  uint64_t lag = now_ - found->second;
  for (uint64_t i = 0; i < kWindow && has(now_ - i); ++i) {
    lag = std::max(lag, entry(now_ - i).longest);
  }
  return has(now_ - lag) && entry(now_ - lag).window[by] == window ? lag : 0;
}

// Keeps memory bounded, and the table of windows with it.
void History::trim() {
  if (entries_.size() <= kCapacity) {
    return;
  }
  const uint32_t slots = entries_.front().slots;
  slots_.erase(slots_.begin(), slots_.begin() + slots);
  dropped_slots_ += slots;
  entries_.pop_front();
  if (windows_.size() > 2 * kLikenesses * kCapacity) {
    windows_.clear();
  }
}

} // namespace at::cuda::lms
