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
      slot.previous_slot = static_cast<uint32_t>(
          page.last_slot - this->entry(page.last_use).first_slot);
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
  entry.key = mix(kind, ages);
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

void History::follow() {
  window_ = window_ * kPrime + entries_.back().key;
  if (now_ > kWindow && has(now_ - kWindow)) {
    window_ -= entry(now_ - kWindow).key * power(kPrime, kWindow);
  }
  Entry& latest = entries_.back();
  latest.window = window_;
  if (lag_ > 0 && has(now_ - lag_) && entry(now_ - lag_).kind == latest.kind &&
      latest.longest <= lag_) {
    ++matched_;
  } else {
    find_lag();
  }
  windows_[window_] = now_;
}

void History::find_lag() {
  lag_ = matched_ = 0;
  const auto found = windows_.find(window_);
  if (found == windows_.end() || !has(found->second)) {
    return;
  }
  uint64_t lag = now_ - found->second;
  uint64_t longest = 0;
  for (uint64_t i = 0; i < kWindow && has(now_ - i); ++i) {
    longest = std::max(longest, entry(now_ - i).longest);
  }
  if (longest > lag) {
    lag = longest;
    if (!has(now_ - lag) || entry(now_ - lag).window != window_) {
      return;
    }
  }
  lag_ = lag;
  matched_ = kWindow;
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
  if (windows_.size() > 2 * kCapacity) {
    windows_.clear();
  }
}

} // namespace at::cuda::lms
