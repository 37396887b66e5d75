#include <ATen/cuda/detail/LMSCoreHistory.h>

#include <algorithm>

namespace at::cuda::lms {
namespace {

constexpr uint64_t kPrime = 0x9E3779B97F4A7C15; // 2^64 / golden ratio, odd
// See Note [Long cycles].
constexpr uint64_t kSampled = 16;
// The sequence counts as unknown for so long after it was lost.
constexpr uint64_t kLost = 64; // operators
// More is kept than a cycle, by 1 / kSpare of it: it is read while operators of
// other threads are added.
constexpr uint64_t kSpare = 16;
constexpr int kTrimmedAtOnce = 4; // operators

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
  entry.ns = op.ns;
  entry.kind = mix(op.name, op.uses.size());
  Hashes hashes{};
  for (const Use& use : op.uses) {
    if (use.page->last_use != now_) { // else it is named twice
      add_use(use, hashes);
    }
  }
  find_windows(hashes);
  follow();
  trim();
}

// Of the latest operator.
void History::add_use(const Use& use, Hashes& hashes) {
  Page& page = *use.page;
  Entry& entry = entries_.back();
  Slot slot(page.bytes, use.writes, page.hint);
  const bool is_known = page.last_use > 0 && page.last_slot >= dropped_slots_;
  if (is_known) {
    slot.previous = static_cast<uint32_t>(now_ - page.last_use);
    Slot& before = slot_of(page);
    before.next = slot.previous;
    before.gain = use.gain;
    before.end = entry.slots;
    slot.previous_slot = static_cast<uint32_t>(
        page.last_slot - this->entry(page.last_use).first_slot);
  }
  if (page.first_use == 0) {
    page.first_use = now_;
  } else if (now_ - page.first_use >= kLasting) {
    hashes[kByName] = mix(hashes[kByName], entry.slots * kPrime + page.id);
  }
  move_to_end(page);
  page.last_use = now_;
  page.last_slot = dropped_slots_ + slots_.size();
  slots_.push_back(slot);
  ++entry.slots;
  entry.longest = std::max(entry.longest, slot.previous);
  entry.kind = mix(entry.kind, page.bytes * 2 + (use.writes ? 1 : 0));
  hashes[kByAge] = mix(hashes[kByAge], slot.previous);
}

void History::on_death(Page* page, uint8_t gain) {
  if (page->last_use == 0) {
    return;
  }
  unlink(*page);
  if (page->last_slot >= dropped_slots_) {
    Slot& slot = slot_of(*page);
    slot.is_dead = 1;
    slot.gain = gain;
    slot.end = static_cast<uint32_t>(now_ - page->last_use);
  }
}

bool History::note_hint(const Page& page) {
  if (page.last_use == 0 || page.last_slot < dropped_slots_) {
    return false; // there is nothing that it changes
  }
  Slot& slot = slot_of(page);
  slot.set(page.hint);
  const Entry& used = entry(page.last_use);
  const uint64_t twin = page.last_use - std::min(page.last_use, lag_);
  if (lag_ == 0 || !has(twin) || entry(twin).kind != used.kind) {
    return true;
  }
  const Slot& before = this->slot(
      entry(twin), static_cast<uint32_t>(page.last_slot - used.first_slot));
  return before.turn != slot.turn || before.again != slot.again;
}

void History::move_to_end(Page& page) {
  if (page.last_use > 0) {
    unlink(page);
  }
  page.older = latest_;
  (latest_ ? latest_->newer : oldest_) = &page;
  latest_ = &page;
}

void History::unlink(Page& page) {
  if (next_page_ == &page) {
    next_page_ = page.newer;
  }
  (page.older ? page.older->newer : oldest_) = page.newer;
  (page.newer ? page.newer->older : latest_) = page.older;
  page.older = page.newer = nullptr;
}

void History::begin_pages_since(uint64_t index) {
  next_page_ = nullptr;
  for (Page* page = latest_; page && page->last_use >= index;
       page = page->older) {
    next_page_ = page;
  }
}

Page* History::next_page() {
  Page* page = next_page_;
  next_page_ = page ? page->newer : nullptr;
  return page;
}

void History::find_windows(const Hashes& hashes) {
  Entry& latest = entries_.back();
  Hashes& oldest = hashes_[now_ % kWindow]; // kWindow operators ago, or 0
  for (const Likeness by : {kByName, kByAge}) {
    const uint64_t hash = mix(latest.kind, hashes[by]);
    window_[by] =
        window_[by] * kPrime + hash - oldest[by] * power(kPrime, kWindow);
    oldest[by] = hash;
  }
  latest.window = window_;
  if (hashes[kByName] == 0) {
    latest.window[kByName] = 0;
  }
}

void History::follow() {
  const Entry& latest = entries_.back();
  if (lag_ > 0 && has(now_ - lag_) && entry(now_ - lag_).kind == latest.kind &&
      latest.longest <= lag_) {
    ++matched_;
    if (lag_ > kAlways) {
      keep(lag_);
    }
  } else {
    if (lag_ > 0) {
      lost_at_ = now_;
    }
    find_lag();
  }
  const bool is_lost = now_ - lost_at_ < kLost;
  for (const uint64_t window : latest.window) {
    if (window != 0) {
      windows_.insert(window, now_, is_lost || window % kSampled == 0);
    }
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
uint64_t History::find_lag(Likeness by) {
  const uint64_t window = entries_.back().window[by];
  const uint64_t found = window == 0 ? 0 : windows_.find(window, now_);
  if (found == 0) {
    return 0;
  }
  uint64_t lag = now_ - found;
  if (!has(found)) {
    keep(lag);
    return 0;
  }
  for (uint64_t i = 0; i < kWindow && has(now_ - i); ++i) {
    lag = std::max<uint64_t>(lag, entry(now_ - i).longest);
  }
  return has(now_ - lag) && entry(now_ - lag).window[by] == window ? lag : 0;
}

// See Note [Long cycles].
void History::keep(uint64_t operators) {
  const uint64_t kept = operators + operators / kSpare;
  if (bytes() / entries_.size() * kept > kMostBytes) {
    return; // such operators would not fit
  }
  kept_ = std::max(kept_, kept);
  kept_until_ = std::max(kept_until_, now_ + 2 * kept);
}

size_t History::bytes() const {
  return entries_.size() * sizeof(Entry) + slots_.size() * sizeof(Slot);
}

// Keeps memory bounded, and time: where less is to be kept than before, a few
// operators go at a time.
void History::trim() {
  if (now_ > kept_until_) {
    kept_ = kAlways;
  }
  for (int i = 0; i < kTrimmedAtOnce && entries_.size() > kept_; ++i) {
    drop_oldest();
  }
  while (bytes() > kMostBytes && entries_.size() > kWindow) {
    drop_oldest();
  }
}

void History::drop_oldest() {
  const uint32_t slots = entries_.front().slots;
  for (uint32_t i = 0; i < slots; ++i) {
    slots_.pop_front();
  }
  dropped_slots_ += slots;
  entries_.pop_front();
}

} // namespace at::cuda::lms
