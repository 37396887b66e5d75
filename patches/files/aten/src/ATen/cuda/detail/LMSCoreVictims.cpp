#include <ATen/cuda/detail/LMSCoreVictims.h>

#include <algorithm>
#include <utility>

namespace at::cuda::lms {
namespace {

// A page that dies is not fetched again: it may be away for so much less time.
constexpr uint64_t kDeath = 8;
// And what is made again in so much less time than it is copied. More than that
// would make it go where it is used again almost at once.
constexpr uint64_t kMostGain = 64;
constexpr uint64_t kNever = Page::kNever;
constexpr uint64_t kFirst = kNever - 1; // sooner than what is used again

} // namespace

Victims::Victims(
    Cycle& cycle,
    size_t capacity,
    size_t least,
    std::vector<char> is_free)
    : cycle_(cycle),
      capacity_(capacity),
      least_(least),
      is_free_(std::move(is_free)),
      turn_(cycle.count(), kNever),
      is_out_(cycle.count(), 0),
      deaths_(cycle.length()) {
  for (uint32_t i = 0; i < cycle.count(); ++i) {
    const Interval& it = cycle.intervals[i];
    if (it.length == 0 && !it.is_endless) {
      deaths_[(it.begin + it.death) % cycle.length()].push_back(i);
    }
  }
}

bool Victims::run() {
  const uint32_t n = cycle_.length();
  for (now_ = 0; now_ < uint64_t{kCycles} * n; ++now_) {
    const auto position = static_cast<uint32_t>(now_ % n);
    const uint32_t first = cycle_.starts[position];
    const Slots slots{first, first + cycle_.slots(position)};
    bring(slots);
    evict(cycle_.unmanaged[position]);
    begin(slots);
    end(position);
  }
  return has_victims_;
}

// The pages that the operator uses are on the device, or come.
void Victims::bring(const Slots& slots) {
  for (uint32_t i = slots.first; i < slots.end; ++i) {
    const uint32_t before = cycle_.before[i];
    const bool is_here = before != Cycle::kNone && turn_[before] != kNever &&
        turn_[before] + cycle_.intervals[before].length == now_ &&
        !is_out_[before];
    used_ += is_here ? 0 : cycle_.intervals[i].bytes;
    if (before != Cycle::kNone) {
      turn_[before] = kNever; // over
    }
  }
}

void Victims::evict(size_t unmanaged) {
  while (used_ + unmanaged > capacity_ && !idle_.empty()) {
    const Idle farthest = idle_.top();
    idle_.pop();
    if (turn_[farthest.number] != farthest.begin) {
      continue; // over
    }
    Interval& it = cycle_.intervals[farthest.number];
    is_out_[farthest.number] = 1;
    used_ -= it.bytes;
    if (farthest.begin / cycle_.length() == 1) {
      it.is_evicted = true;
      it.away = static_cast<uint32_t>(now_ - farthest.begin);
      has_victims_ = true;
    }
    if (farthest.end == kNever) {
      turn_[farthest.number] = kNever;
    }
  }
}

void Victims::begin(const Slots& slots) {
  for (uint32_t i = slots.first; i < slots.end; ++i) {
    const Interval& it = cycle_.intervals[i];
    if (turn_[i] != kNever && !is_out_[i]) {
      used_ -= it.bytes; // nobody saw the end of its last turn
    }
    turn_[i] = now_;
    is_out_[i] = 0;
    // Of what dies, too, evicting wins the time until then only. What is
    // used or dies with the next operator cannot be evicted in between.
    const uint64_t length = it.length > 0 ? it.length : it.death;
    if (it.bytes >= least_ && (it.is_endless || length > 1)) {
      const uint64_t weight =
          it.length > 0 ? std::clamp<uint64_t>(it.gain, 1, kMostGain) : kDeath;
      const uint64_t end = it.is_endless ? kNever
          : is_free_[i]                  ? kFirst
                                         : now_ + weight * length;
      idle_.push({it.turn, end, now_, i});
    }
  }
}

// Pages die after the operator.
void Victims::end(uint32_t position) {
  for (const uint32_t i : deaths_[position]) {
    if (turn_[i] != kNever && turn_[i] + cycle_.intervals[i].death == now_) {
      used_ -= is_out_[i] ? 0 : cycle_.intervals[i].bytes;
      turn_[i] = kNever;
    }
  }
}

} // namespace at::cuda::lms
