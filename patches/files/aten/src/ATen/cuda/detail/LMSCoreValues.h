#pragma once

#include <ATen/cuda/detail/LMSCoreBooks.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace at::cuda::lms {

struct Ingredients;

// What a page holds, or held: the bytes from one write to the next. Guarded by
// the mutex of its device. See Note [Recipes].
struct Value {
  PageEntry* holder = nullptr; // null: no page does any more
  std::shared_ptr<const Ingredients> recipe; // null: it cannot be made
  size_t result = 0; // which of the recipe's
  // Pages that were dropped and are made from what the holder has.
  std::vector<PageEntry*> needed_by;
  int row = 0; // see Note [Rows of dropped pages]
  bool ends_row = false; // and is never dropped
  size_t made = 0; // bytes of the pages that hold what is made from it
  bool is_ending = false; // about to be written to: no more pages need it
};
using ValuePtr = std::shared_ptr<Value>;

// What the recipe of an operator runs on.
struct Ingredients {
  Ingredients() = default;
  Ingredients(const Ingredients&) = delete;
  Ingredients& operator=(const Ingredients&) = delete;
  virtual ~Ingredients() = default;

  std::vector<ValuePtr> values; // of its arguments; one may come twice
};

// Which bytes of a device can be made again, and which have been dropped.
//
// Note [What dropped pages are made from]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// When a page is dropped, all that it will be made from is noted: values that
// pages hold, its *sources*. Until the page is made or dies
//  - no operator writes to a source: what depends on it is made before;
//  - a source whose storage dies is kept: its page, with its memory and its
//    place in the books, goes on without one;
//  - a source on the host is needed when the page is: the policy has it fetched
//    before, else small ones would wait behind large copies for later uses.
// All of them are on this device.
// Sources may be paged out, and may be dropped themselves.
//
// Note [Rows of dropped pages]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Where each page is made from the one before, as along a network, all of them
// are made for the last one, and stay until their own uses. So that they do not
// take too much memory, a row ends with a page that is never dropped. That is
// where a skip connection ends, in the second half of the longest row, since
// all that follows is made from that page alone:
//
//     x --> f --> g --> h --(+)--> y      y ends the row that x is in
//     '---------------------'
//
// or where the row is as long as it may be. How long it is up to a value is
// known when the value is made, so that a plan knows what can be dropped.
//
// Note [Small sources]
// ~~~~~~~~~~~~~~~~~~~~
// The gradient of an embedding bag's table is made from tensors that are much
// smaller, and die at once. So a page whose storage dies is also kept while
// pages are made from it that together are kSmall times as large.
//
// With the mutex, except where noted.
class Values {
 public:
  explicit Values(Books& books) : books_(books) {}
  Values(const Values&) = delete;
  Values& operator=(const Values&) = delete;
  virtual ~Values() = default;

  // Operators are kept: memory is short, and the settings allow it. With or
  // without the mutex.
  bool are_kept() const;
  // Some page is dropped. With or without the mutex.
  bool is_any_dropped() const {
    return dropped_.load(std::memory_order_relaxed) > 0;
  }

  // What the page holds, which is noted if it was not.
  static const ValuePtr& value_of(PageEntry& page);
  // The page holds a result of the recipe.
  static void note_made(
      PageEntry& page,
      std::shared_ptr<const Ingredients> recipe,
      size_t result);
  static bool is_made_by(const PageEntry& page, const Ingredients& recipe) {
    return page.value && page.value->recipe.get() == &recipe;
  }

  // See World.
  uint32_t gain(const PageEntry& page);
  bool give_up(PageEntry& page, bool at_any_cost);
  // It may be dropped.
  bool can_be_made(const PageEntry& page);

  // Dropped pages are made from what it has.
  static bool is_needed(const PageEntry& page) {
    return page.value && !page.value->needed_by.empty();
  }
  // It goes on without its storage.
  static bool is_kept(const PageEntry& page) {
    return is_needed(page) ||
        (page.value && page.value->made / kSmall >= page.bytes);
  }
  // Those. No more of them come: the page is about to be written to.
  std::vector<PageEntry*> dependents_of(const PageEntry& page) const;
  // The page gets other bytes, or its address escapes. False if dropped pages
  // need the bytes that it has: those have to be made before. `is_inside`: by
  // an operator inside of another one, of which the page may have been told.
  bool note_write(PageEntry& page, bool is_inside = false);
  // The page has been made, or dies.
  void let_go_of_sources(PageEntry& page);
  // The page is taken off the books.
  void forget(PageEntry& page);

 protected:
  // The settings allow it. With or without the mutex.
  virtual bool is_allowed() const = 0;
  // Nanoseconds that the operator takes; 0: it is not known.
  virtual uint64_t ns_of(const Ingredients& recipe) const = 0;
  // Of a copy to the host, per byte, as far as is known.
  virtual double copy_ns() = 0;
  // It need not be kept any more.
  virtual void on_needless(PageEntry& page) = 0;

 private:
  static constexpr int kMostSteps = 6; // to make one page
  // See Note [Rows of dropped pages].
  static constexpr int kMostInRow = 24; // pages
  static constexpr int kSkipped = 3; // pages that a skip leaves out, at least
  static constexpr size_t kSmall = 8; // see Note [Small sources]

  struct Needs {
    std::vector<ValuePtr> sources;
    uint64_t ns = 0;
    bool is_timed = true; // the time is known
    int steps = 0;
  };
  static void extend_row(Value& value, size_t bytes);
  bool gather(const Value& value, Needs& needs) const;
  bool may_drop(const PageEntry& page, Needs& needs) const;
  uint32_t gain_by(const Needs& needs, const PageEntry& page);
  static int steps_to_make(const Value& value);
  void tell_when_needed(const Value& source);
  void end_if_needless(const Value& source);
  void lose(Value& value);

  Books& books_;
  std::atomic<size_t> dropped_{0};
};

} // namespace at::cuda::lms
