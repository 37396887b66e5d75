#include <ATen/cuda/detail/LMSCoreCycle.h>

#include <utility>

namespace at::cuda::lms {

uint32_t Cycle::first_of_same(uint32_t number) const {
  // Pages that are read more often between two writes are rare, and each of
  // their intervals asks.
  constexpr int kMostReads = 64;
  for (int i = 0; i < kMostReads; ++i) {
    const uint32_t previous = before[number];
    if (intervals[number].is_after_write || previous == kNone ||
        intervals[previous].is_evicted) {
      break;
    }
    number = previous;
  }
  return number;
}

CycleReader::CycleReader(const History& history)
    : lag_(history.lag()),
      end_(history.now()),
      next_(history.now() - history.lag() + 1) {
  // Not one allocation grows while the reader is under way.
  const uint64_t uses = history.uses_since(next_);
  cycle_.intervals.reserve(uses);
  cycle_.starts.reserve(lag_);
  cycle_.unmanaged.reserve(lag_);
  cycle_.ns.reserve(lag_);
  links_.reserve(uses);
}

bool CycleReader::read(const History& history, uint64_t uses) {
  const uint64_t most = cycle_.intervals.size() + uses;
  for (; !is_done() && cycle_.intervals.size() < most; ++next_) {
    if (!history.has(next_)) {
      return false;
    }
    const History::Entry& entry = history.entry(next_);
    cycle_.starts.push_back(cycle_.count());
    cycle_.unmanaged.push_back(entry.unmanaged);
    cycle_.ns.push_back(entry.ns);
    for (uint32_t number = 0; number < entry.slots; ++number) {
      read_use(history, number);
    }
  }
  return true;
}

// The slot as it was when the reader was made: the last operator of the cycle
// had just run, and no page had died since.
History::Slot CycleReader::slot_at_end(
    const History& history,
    uint64_t index,
    uint32_t number) const {
  History::Slot slot = history.slot(history.entry(index), number);
  if (slot.next > 0 && index + slot.next > end_) {
    slot.next = 0;
    slot.is_dead = 0;
  } else if (slot.is_dead && index + slot.end >= end_) {
    slot.is_dead = 0;
  }
  return slot;
}

// What follows the use: as far as it has happened already, else as it happened
// one cycle ago.
void CycleReader::read_use(const History& history, uint32_t number) {
  History::Slot slot = slot_at_end(history, next_, number);
  links_.push_back(
      {slot.previous,
       slot.previous_slot,
       slot.next,
       slot.end,
       slot.is_dead != 0});
  Interval interval;
  interval.begin = cycle_.length() - 1;
  interval.bytes = slot.bytes;
  interval.is_after_write = slot.writes != 0;
  interval.turn = static_cast<Hint::Turn>(slot.turn);
  if (slot.next == 0 && !slot.is_dead) {
    const uint64_t twin = next_ - lag_;
    if (history.has(twin) &&
        history.entry(twin).kind == history.entry(next_).kind) {
      slot = slot_at_end(history, twin, number);
    }
  }
  interval.length = slot.next;
  interval.gain = static_cast<uint8_t>(slot.gain);
  interval.death = slot.is_dead ? slot.end : 0;
  interval.is_endless = slot.next == 0 && !slot.is_dead;
  cycle_.intervals.push_back(interval);
}

Cycle CycleReader::take() {
  cycle_.before.assign(cycle_.count(), Cycle::kNone);
  for (uint32_t position = 0; position < cycle_.length(); ++position) {
    for (uint32_t slot = 0; slot < cycle_.slots(position); ++slot) {
      find_before(position, slot);
    }
  }
  links_ = {};
  return std::move(cycle_);
}

// Which interval the use ends, and how long that is if it goes on in the next
// cycle.
void CycleReader::find_before(uint32_t position, uint32_t slot) {
  const uint32_t length = cycle_.length();
  const uint32_t use = cycle_.number(position, slot);
  const Link& link = links_[use];
  uint32_t& before = cycle_.before[use];
  if (link.previous == 0) {
    return;
  }
  if (link.previous <= position) {
    before = cycle_.number(position - link.previous, link.previous_slot);
    return;
  }
  uint32_t last = position;
  uint32_t end = use;
  while (links_[end].next > 0) {
    last += links_[end].next;
    end = cycle_.number(last, links_[end].next_slot);
  }
  if (!links_[end].is_dead) {
    // The page was there before the cycle, and is still: it is used again one
    // cycle later.
    before = end;
    cycle_.intervals[before].length = position + length - last;
    cycle_.intervals[before].is_endless = false;
  } else if (link.previous <= length) {
    // Another page will have its part: the one whose use was as long before.
    const uint32_t begin = (position + length - link.previous) % length;
    const uint32_t other = cycle_.number(begin, link.previous_slot);
    if (link.previous_slot < cycle_.slots(begin) &&
        cycle_.intervals[other].bytes == cycle_.intervals[use].bytes) {
      before = other;
      Interval& interval = cycle_.intervals[other];
      if (lag_ > History::kAlways && interval.is_endless) {
        interval.length = link.previous; // the history has no twin of it
        interval.is_endless = false;
      }
    }
  }
}

} // namespace at::cuda::lms
