#pragma once

#include <ATen/cuda/detail/LMSCorePolicy.h>
#include <ATen/cuda/detail/LMSCoreWindows.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>

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
//
// Note [Long cycles]
// ~~~~~~~~~~~~~~~~~~
// The last kAlways operators are always kept. A cycle may be longer: one step
// of an optimizer after many micro-batches, each of which is a cycle, too. So
// some windows are remembered for longer than the operators: one in kSampled,
// as their hashes have it, and all right after a lag was lost, which is where a
// longer cycle shows. If such a window comes again, and there is no
// lag among what is kept, so many more operators are kept from then on, as far
// as kMostBytes allows. If the program has such a cycle, the window's third
// time finds the lag; if it has not, what is kept shrinks again.
class History {
 public:
  static constexpr uint64_t kWindow = 8; // operators
  // A page lasts if its first use was so many operators ago.
  static constexpr uint64_t kLasting = 32;
  static constexpr uint64_t kAlways = 1 << 17; // operators
  // Entries and slots take no more than this. A million operators with three
  // uses each take 115 MiB; five uses each are what just fits.
  static constexpr size_t kMostBytes = size_t{160} << 20;

  struct Slot { // a use of a page
    uint64_t bytes : 50;
    uint64_t gain : 8; // until the next use or death, see Use
    uint64_t is_dead : 1;
    uint64_t writes : 1;
    uint64_t turn : 2; // see Hint, as the next one
    uint64_t again : 2;
    uint32_t previous = 0; // operators since the use before; 0: the first one
    uint32_t previous_slot = 0; // of that operator's
    uint32_t next = 0; // operators until the next use; 0: not yet, or none
    uint32_t end = 0; // slot of that operator's; operators until death if dead

    Slot(size_t bytes, bool writes, Hint hint)
        : bytes(bytes), gain(0), is_dead(0), writes(writes ? 1 : 0) {
      set(hint);
    }
    void set(Hint hint) {
      turn = static_cast<uint64_t>(hint.turn) & 3;
      again = static_cast<uint64_t>(hint.again) & 3;
    }
  };
  enum Likeness : size_t { kByName, kByAge, kLikenesses };
  using Hashes = std::array<uint64_t, kLikenesses>;
  struct Entry { // an operator
    uint64_t kind = 0;
    // Hash of the kWindow operators up to this one; by name it is 0 if no page
    // of this one lasts.
    Hashes window{};
    uint64_t first_slot = 0;
    size_t unmanaged = 0; // see Operator
    uint32_t ns = 0; // see Operator
    uint32_t slots = 0;
    uint32_t longest = 0; // operators since a use of one of its pages, at most
  };

  // Sets of the pages what is the history's own.
  void append(const Operator& op);
  // `gain`: see Use, since its last one.
  void on_death(Page* page, uint8_t gain);
  // The page has another hint since its last use. False if the page that was in
  // its place one lag ago had the same.
  bool note_hint(const Page& page);

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
  // Uses of pages by the operators from this one on.
  uint64_t uses_since(uint64_t index) const {
    return dropped_slots_ + slots_.size() - entry(index).first_slot;
  }
  size_t bytes() const;

  // Goes through the pages that are alive, the least recently used first, while
  // pages may be used and die: an iteration that is begun ends the one before.
  void begin_pages() {
    next_page_ = oldest_;
  }
  // As that, but without those that have not been used from this operator on.
  // Takes as long as there are others.
  void begin_pages_since(uint64_t index);
  Page* next_page(); // null: there are no more

 private:
  Slot& slot_of(const Page& page);
  void add_use(const Use& use, Hashes& hashes);
  void move_to_end(Page& page);
  void unlink(Page& page);
  void find_windows(const Hashes& hashes);
  void follow();
  void find_lag();
  uint64_t find_lag(Likeness by);
  void keep(uint64_t operators);
  void trim();
  void drop_oldest();

  std::deque<Entry> entries_;
  std::deque<Slot> slots_;
  uint64_t dropped_slots_ = 0; // off the front of slots_
  uint64_t now_ = 0;
  uint64_t lag_ = 0;
  uint64_t matched_ = 0;
  Windows windows_{kAlways}; // the last operator of each
  Hashes window_{}; // of the latest entry
  std::array<Hashes, kWindow> hashes_{}; // of the latest operators
  uint64_t lost_at_ = 0; // the operator that ended the last lag
  uint64_t kept_ = kAlways; // operators, see Note [Long cycles]
  uint64_t kept_until_ = 0; // then it is kAlways again
  // The pages that are alive, by last use, linked to each other.
  Page* oldest_ = nullptr;
  Page* latest_ = nullptr;
  Page* next_page_ = nullptr;
};

} // namespace at::cuda::lms
