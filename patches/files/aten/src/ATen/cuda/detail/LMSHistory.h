#pragma once

#include <ATen/cuda/detail/LMSPolicy.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>

namespace at::cuda::lms {

// Note [Learning the sequence of operators]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Training repeats itself. The history keeps the operators of the recent past
// and looks for the *lag*: the number of operators after which the sequence
// repeats. Operators are told apart by two hashes:
//  - `kind`: the name, and size and direction of each use;
//  - `key`: the kind, and for each use how many operators ago the page was used
//    before. Layers of one model are alike in kind, but not in key: the
//    optimizer updated their parameters all at about the same time.
// A lag is found when the last kWindow operators have the keys of kWindow
// operators before, and holds as long as each new operator is of the kind of
// the one a lag ago. So nothing has to tell where an iteration begins, and one
// that differs (an evaluation, the last batch) costs the lag until the
// sequence is known again.
//
// In a model that only runs forward, layers may be alike in key too, and the
// sequence seems to repeat after one of them. But the pages of the next layer
// were used longer ago than that. So a lag is at least as long as the time
// between two uses of any page, and where it is not, that time is tried.
class History {
 public:
  static constexpr uint64_t kWindow = 8; // operators
  static constexpr uint64_t kCapacity = 1 << 17; // operators

  struct Slot { // a use of a page
    Page* page = nullptr; // valid in the page's last slot only; null when dead
    size_t bytes = 0;
    uint32_t previous = 0; // operators since the use before; 0: the first one
    uint32_t previous_slot = 0; // of that operator's
    uint32_t next = 0; // operators until the next use; 0: not yet, or none
    uint32_t death = 0; // operators until the page died, if it did
    bool is_dead = false;
  };
  struct Entry { // an operator
    uint64_t kind = 0;
    uint64_t key = 0;
    uint64_t window = 0; // hash of the keys of the window that ends here
    uint64_t longest = 0; // operators since a use of one of its pages, at most
    uint64_t first_slot = 0;
    uint32_t slots = 0;
    size_t unmanaged = 0; // see Operator
  };

  // Sets `last_use` of the pages.
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
  void follow();
  void find_lag();
  void trim();

  std::deque<Entry> entries_;
  std::deque<Slot> slots_;
  uint64_t dropped_slots_ = 0; // off the front of slots_
  uint64_t now_ = 0;
  uint64_t lag_ = 0;
  uint64_t matched_ = 0;
  // The last operator of each window of kWindow, by the hash of its keys.
  std::unordered_map<uint64_t, uint64_t> windows_;
  uint64_t window_ = 0; // of the latest entry
};

} // namespace at::cuda::lms
