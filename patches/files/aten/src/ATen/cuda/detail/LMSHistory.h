#pragma once

#include <ATen/cuda/detail/LMSPolicy.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>

namespace at::cuda::lms {

// Note [Learning the sequence of operators]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Training repeats itself. The history keeps the operators of the recent past
// and looks for the *lag*: the number of operators after which the sequence
// repeats. Operators are of one `kind` if their names are the same, and size
// and direction of each use. Layers of one model are of the same kinds; what
// tells them apart is a hash of the kind and
//  - by name: the pages that it uses, of those that *last*, as parameters do.
//    They are the same in every iteration, whatever was in between: most often
//    the optimizer, which makes its state in the first one;
//  - by age: for each use, how many operators ago the page was used before.
//    That is the same also for pages made anew each time, so that it tells
//    apart operators on nothing else, of the backward pass most of all.
// A lag is found when the last kWindow operators are like kWindow operators
// before, by name or else by age, and holds as long as each new operator is of
// the kind of the one a lag ago. So nothing has to tell where an iteration
// begins, and one that differs (an evaluation, the last batch) costs the lag
// until the sequence is known again.
//
// In a model that only runs forward, layers may be alike in age too, and the
// sequence seems to repeat after one of them. But the pages of the next layer
// were used longer ago than that. So a lag is at least as long as the time
// between two uses of any page, and where it is not, that time is tried.
class History {
 public:
  static constexpr uint64_t kWindow = 8; // operators
  // A page lasts if its first use was so many operators ago.
  static constexpr uint64_t kLasting = 32;
  static constexpr uint64_t kCapacity = 1 << 17; // operators

  struct Slot { // a use of a page
    Page* page = nullptr; // valid in the page's last slot only; null when dead
    size_t bytes = 0;
    uint32_t previous = 0; // operators since the use before; 0: the first one
    uint32_t previous_slot = 0; // of that operator's
    uint32_t next = 0; // operators until the next use; 0: not yet, or none
    uint32_t next_slot = 0; // of that operator's
    uint32_t death = 0; // operators until the page died, if it did
    bool is_dead = false;
  };
  enum Likeness : size_t { kByName, kByAge, kLikenesses };
  struct Entry { // an operator
    uint64_t kind = 0;
    std::array<uint64_t, kLikenesses> hash{};
    // Of the hashes of the kWindow operators up to this one; by name it is 0 if
    // no page of this one lasts.
    std::array<uint64_t, kLikenesses> window{};
    uint64_t longest = 0; // operators since a use of one of its pages, at most
    uint64_t first_slot = 0;
    uint32_t slots = 0;
    size_t unmanaged = 0; // see Operator
  };

  // Sets `first_use` and `last_use` of the pages.
  void append(const Operator& op);
  void on_death(Page* page);

  // Index of the latest operator; the first one has 1.
  uint64_t now() const {
    return now_;
  }
  // Operators after which the sequence repeats, 0 if it does not.
  uint64_t lag() const {
    return lag_;
  }
  // Operators for which the present lag has held.
  uint64_t matched() const {
    return matched_;
  }

  bool has(uint64_t index) const {
    return index + entries_.size() > now_ && index <= now_;
  }
  const Entry& entry(uint64_t index) const {
    return entries_[entries_.size() - 1 - (now_ - index)];
  }
  const Slot& slot(const Entry& entry, uint32_t number) const {
    return slots_[entry.first_slot + number - dropped_slots_];
  }

 private:
  Slot& slot_of(const Page& page);
  void find_windows();
  void follow();
  void find_lag();
  uint64_t find_lag(Likeness by) const;
  void trim();

  std::deque<Entry> entries_;
  std::deque<Slot> slots_;
  uint64_t dropped_slots_ = 0; // off the front of slots_
  uint64_t now_ = 0;
  uint64_t lag_ = 0;
  uint64_t matched_ = 0;
  // The last operator of each window of kWindow, by hash.
  std::unordered_map<uint64_t, uint64_t> windows_;
  std::array<uint64_t, kLikenesses> window_{}; // hashes, of the latest entry
};

} // namespace at::cuda::lms
