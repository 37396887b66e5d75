#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace at::cuda::lms {

// Note [Processes that share a card]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Nobody can take device memory from another process. So the LMS processes of
// one user on a card write down what they have of its memory and how much they
// want (Note [Records that processes share]). One that wants more than the card
// has left waits a while, and the others give way:
//
// - A process is at rest when for some time it has run no operator and the
//   device has done nothing for it. Its storages leave, segment by segment, as
//   far as others want memory. When it runs again they come back as any
//   storages do, and others give way to it.
// - A busy one keeps what the others do not want, and its fair share in any
//   case: the card over the number of busy processes. Its limit sinks to that.
//
// What others would give counts in the limit as if it was free (Note [The limit
// follows the card]): a process grows into it, and asks when the card itself
// has no more. A limit that has sunk rises again for what has been at rest for
// long, since both pay with copies: the one leaves, the other takes its memory
// anew as one segment. A want is forgotten when its process comes to rest, or
// has not asked again for a while.
//
// Who is stopped can give nothing. So each writes when it last looked at the
// others, and one that has not done so lately counts as one that does not ask
// LMS: what it has is not to be had. But before a request fails it is waited
// for too, and longer than usually: it may only be slow, or about to write down
// what it has taken. Times are of the host's monotonic clock.

// What a process says of itself.
struct Sharer {
  uint64_t reserved = 0; // bytes that its caching allocator has
  uint64_t kept = 0; // of these it could not give so much when it last tried
  uint64_t goal = 0; // bytes that it wants to have in all; 0: it does not ask
  uint64_t is_giving = 0; // it is giving way
  uint64_t used_ms = 0; // when it was last busy, milliseconds
  uint64_t seen_ms = 0; // when it last looked

  static constexpr size_t kNumbers = 6;
  std::array<uint64_t, kNumbers> numbers() const {
    return {reserved, kept, goal, is_giving, used_ms, seen_ms};
  }
  static Sharer from(const uint64_t* numbers) {
    return {
        numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]};
  }
};

// The rule by which processes share a card, as one of them sees the others.
// It includes no PyTorch.
class Sharers {
 public:
  // Milliseconds.
  static constexpr uint64_t kRest = 500; // then a process gives way
  static constexpr uint64_t kNearRest = 200; // then it is expected to
  static constexpr uint64_t kLongRest = 10'000;
  static constexpr uint64_t kAlive = 2'000; // between two looks, at most
  static constexpr uint64_t kWant = 10'000; // that a want lasts

  // `total`: bytes of the card.
  Sharers(
      size_t total,
      const Sharer& own,
      const std::vector<Sharer>& others,
      uint64_t now_ms)
      : own_(own),
        now_ms_(now_ms),
        usable_(total / 100 * kPercent),
        is_alone_(others.empty()) {
    for (const Sharer& other : others) {
      if (now_ms <= other.seen_ms + kAlive) {
        others_.push_back(other);
      }
    }
  }

  // No other process uses the card with LMS, not even one that is stopped.
  bool is_alone() const {
    return is_alone_;
  }
  bool are_any() const {
    return !others_.empty();
  }
  bool is_any_giving() const {
    return std::any_of(others_.begin(), others_.end(), [](const Sharer& other) {
      return other.is_giving != 0;
    });
  }
  // Bytes that the others have.
  size_t taken() const {
    size_t bytes = 0;
    for (const Sharer& other : others_) {
      bytes += other.reserved;
    }
    return bytes;
  }

  // Bytes of each busy process, this one among them.
  size_t share() const {
    size_t busy = 1;
    for (const Sharer& other : others_) {
      busy += is_at_rest(other, kRest) ? 0 : 1;
    }
    return usable_ / busy;
  }

  // Bytes that others would give: all that they can if they have been at rest
  // for so long, else what they have beyond their share.
  size_t obtainable(uint64_t rest_ms) const {
    const size_t share = this->share();
    size_t bytes = 0;
    for (const Sharer& other : others_) {
      const size_t stays =
          is_at_rest(other, rest_ms) ? other.kept : std::max(share, other.kept);
      bytes += beyond(other.reserved, stays);
    }
    return bytes;
  }

  // Whether others want more than they have.
  bool is_any_in_want() const {
    return std::any_of(others_.begin(), others_.end(), [](const Sharer& other) {
      return other.goal > other.reserved;
    });
  }
  // Bytes that are missing for that, beside what is to stay free.
  size_t missing(size_t free) const {
    size_t bytes = 0;
    for (const Sharer& other : others_) {
      bytes += beyond(other.goal, other.reserved);
    }
    return bytes == 0 ? 0 : beyond(bytes + usable_ / kRestPart, free);
  }

  // Bytes that this process may have at most since others want memory; nothing
  // if they do not.
  std::optional<size_t> bound() const {
    size_t wanted = 0;
    bool is_any = false;
    for (const Sharer& other : others_) {
      if (!is_at_rest(other, kRest)) {
        wanted += std::max(other.goal, other.reserved);
        is_any = is_any || other.goal > 0;
      }
    }
    return is_any ? std::optional(std::max(share(), beyond(usable_, wanted)))
                  : std::nullopt;
  }

  // Bytes that this process should want to have in all, if it needs `growth`
  // more than it has and its storages take `storages`. Not little by little:
  // each time somebody has to be waited for.
  size_t goal(size_t growth, size_t storages) const {
    const size_t reserved = own_.reserved;
    return std::min(
        std::max(
            {reserved + growth, storages, 2 * reserved, usable_ / kStepPart}),
        std::max(usable_, reserved + growth));
  }

 private:
  static constexpr size_t kPercent = 95; // of the card, see Limit
  static constexpr size_t kRestPart = 20; // that is to stay free
  static constexpr size_t kStepPart = 4;

  static size_t beyond(size_t bytes, size_t most) {
    return bytes - std::min(bytes, most);
  }

  bool is_at_rest(const Sharer& sharer, uint64_t rest_ms) const {
    return now_ms_ >= sharer.used_ms + rest_ms;
  }

  const Sharer own_;
  const uint64_t now_ms_;
  const size_t usable_; // bytes
  const bool is_alone_;
  std::vector<Sharer> others_; // that are alive
};

} // namespace at::cuda::lms
