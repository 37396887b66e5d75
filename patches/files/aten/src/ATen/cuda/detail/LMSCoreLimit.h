#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

namespace at::cuda::lms {

// Note [The limit follows the card]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// What a card has for the caching allocator is not known when LMS is turned on:
// libraries and other processes take memory later, past the allocator, and see
// an error if there is none. They cannot be heard asking. So a share of the
// card is kept free, and when others have taken half of it the limit sinks
// until it is free again. Once much has become free, the limit rises.
//
// The driver is asked what is free where the allocator is about to ask it for a
// segment, which costs more, and once in so many operators. A limit that the
// program has set is taken at its word until the driver refuses memory below
// it; it then follows the card too, and never rises above what was set. The
// driver is also asked before a request fails: the limit may be of a moment at
// which others had more, or be less than what cannot leave.
//
// A refusal is learned once: the limit sinks to what the allocator has, or
// below, so that the next request finds that it has to page out. If the driver
// refuses what it says is free, the limit is tried again after ever more
// operators.
//
// What other processes would give for the asking counts as if it was free, and
// is asked for when the card itself has no more (Note [Processes that share a
// card]).
//
// The limit changes seldom, and then by much: the one segment is taken anew
// each time, see Note [One segment].

// The limit of a device and the rules by which it changes. It knows nothing of
// PyTorch.
class Limit {
 public:
  // Memory of a card, bytes.
  struct Card {
    size_t free = 0;
    size_t reserved = 0; // by the caching allocator
    size_t obtainable = 0; // from other processes
    size_t spare = 0; // of that, what nobody has used for long

    size_t available() const {
      return free + reserved + obtainable;
    }
  };

  // Starts anew. `total`: of the card; `ceiling`: what the program allows.
  void set(size_t total, size_t ceiling, bool is_default, const Card& card) {
    total_ = total;
    ceiling_ = std::min(ceiling, total);
    share_ = kAll;
    is_default_ = is_default;
    bytes_ = is_default ? wanted(card) : ceiling_;
    interval_ = operators_left_ = kFirstInterval;
  }

  size_t bytes() const {
    return bytes_;
  }

  // Of the card, such that the caching allocator's rounding gives the bytes.
  double fraction() const {
    return total_ == 0
        ? 1.0
        : std::min(
              (static_cast<double>(bytes_) + 0.5) / static_cast<double>(total_),
              1.0);
  }

  // It may change; else there is no need to ask the driver.
  bool follows() const {
    return is_default_ || bytes_ < ceiling_;
  }

  // Counts an operator. True if it is time to look at the card again.
  bool is_due() {
    if (!follows() || --operators_left_ > 0) {
      return false;
    }
    operators_left_ = interval_;
    return true;
  }

  void look_soon() {
    operators_left_ = 1;
  }

  // Bytes of the card that have to be free for `growth` more.
  static size_t needed(const Card& card, size_t growth) {
    return growth + card.available() / kScarcePart;
  }

  // Bytes of the card that have to be free for a limit of `growth` more than
  // the allocator has; nothing if the program does not allow so much.
  std::optional<size_t> needed_for_limit(const Card& card, size_t growth)
      const {
    const size_t bytes = card.reserved + growth;
    const size_t available = (bytes / kPercent + 1) * 100;
    return bytes <= ceiling_ && available <= total_
        ? std::optional(available - card.reserved)
        : std::nullopt;
  }

  // The functions below return whether the limit has changed. Most are told
  // what the card has.

  // Other processes want what is beyond so many bytes; kAll: nothing.
  static constexpr size_t kAll = std::numeric_limits<size_t>::max();
  bool set_share(size_t bytes) {
    share_ = bytes;
    return bytes < bytes_ - std::min(bytes_, total_ / kScarcePart) &&
        change(bytes);
  }

  bool look(const Card& card) {
    const size_t wanted =
        this->wanted({card.free, card.reserved, card.spare, card.spare});
    const bool may_rise =
        wanted > bytes_ && wanted - bytes_ >= card.available() / kRisePart;
    return may_rise ? change(wanted) : look_before_growth(card, 0);
  }

  // The allocator is about to ask the driver for `growth` bytes.
  bool look_before_growth(const Card& card, size_t growth) {
    return card.free < needed(card, growth) && sink(card);
  }
  // A request would fail at this limit, though there may be more by now. The
  // share is forgotten: what cannot leave may be as large.
  bool rise(const Card& card) {
    share_ = kAll;
    return wanted(card) > bytes_ && change(wanted(card));
  }
  // Nobody gives what it lacks.
  bool sink(const Card& card) {
    return follows() && wanted(card) < bytes_ && change(wanted(card));
  }

  // The driver has refused `growth` bytes, more than none.
  bool learn_refusal(const Card& card, size_t growth) {
    interval_ = std::min(2 * interval_, kLastInterval);
    operators_left_ = interval_;
    const size_t possible = std::min(wanted(card), card.reserved + growth - 1);
    return possible < bytes_ && change(possible);
  }

 private:
  static constexpr size_t kPercent = 95; // of what is available
  static constexpr size_t kScarcePart = 40; // half of the rest
  static constexpr size_t kRisePart = 16;
  // Operators between two looks.
  static constexpr uint64_t kFirstInterval = 2048;
  static constexpr uint64_t kLastInterval = uint64_t{1} << 22;

  size_t wanted(const Card& card) const {
    return std::min({ceiling_, share_, card.available() / 100 * kPercent});
  }

  bool change(size_t bytes) {
    bytes_ = bytes;
    return true;
  }

  size_t total_ = 0;
  size_t ceiling_ = 0;
  size_t share_ = kAll;
  size_t bytes_ = 0;
  bool is_default_ = true;
  uint64_t interval_ = kFirstInterval;
  uint64_t operators_left_ = kFirstInterval;
};

} // namespace at::cuda::lms
