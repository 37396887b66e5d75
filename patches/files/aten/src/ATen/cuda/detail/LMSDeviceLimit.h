#pragma once

#include <ATen/cuda/detail/LMSCompat.h>
#include <ATen/cuda/detail/LMSCoreLimit.h>

#include <atomic>
#include <cstddef>
#include <optional>

namespace at::cuda::lms {

class Device;

// How much of a device's memory the caching allocator may reserve: the rule of
// Limit, what the program has asked for, and what the card turns out to have.
// Called without the mutex, except where noted.
class CardLimit {
 public:
  explicit CardLimit(Device& device) : device_(device) {}

  // Bytes the caching allocator may reserve; 0: the default. What it has beyond
  // that is paged out and given back to the driver.
  void set(size_t bytes);
  // The same, but nothing is given back yet.
  void apply(size_t bytes);
  void remove(); // when LMS is turned off
  // Of torch.cuda.set_per_process_memory_fraction; the smaller limit counts.
  void set_user_fraction(double fraction);
  double user_fraction();

  size_t bytes();
  size_t requested(); // as it was set
  // Bytes that operators' storages can take together: the limit less what
  // cannot be evicted, in large steps, so that list operators are seldom cut
  // otherwise than in the iteration before.
  size_t room_for_operators();
  // Bytes that one allocation can get once everything evictable is evicted.
  // What is resident makes no difference to it.
  size_t room_for_one();

  // Tells the allocator of a limit that has changed by itself. False if it has
  // not. See Note [The limit follows the card].
  bool enforce();
  // The allocator is about to ask the driver for a segment. Where others have
  // what it lacks they are asked for it, which takes a while, unless the
  // allocator has been called already.
  void look_before_growth(size_t bytes);
  // An allocation has failed. True if the next try may not: others have given
  // what the driver refused, or the limit has changed.
  bool recover();
  // Everything has been evicted, and it is not enough for a segment of so many
  // bytes. True if the next try may not fail: others have given what is
  // missing, which they are given time for, or the limit has risen.
  bool rise(size_t growth);
  // Whether a segment may be taken for what is not needed yet.
  bool may_take_ahead(size_t bytes);
  // Bytes; 0 if the driver does not say.
  size_t free_on_card();

  // With the mutex: an operator has run. True if `look` is due.
  bool is_look_due() {
    return rule_.is_due();
  }
  // Between operators.
  void look() noexcept;
  // By any thread: it is due after the next operator.
  void look_soon();
  // By any thread: the bytes that other processes leave, if they want any; the
  // limit sinks to that.
  void set_share(std::optional<size_t> bytes);
  // Between operators: what is reserved beyond a new limit goes back to the
  // driver.
  void obey() noexcept;
  // With the mutex: an allocation has failed.
  void note_failure(const TraceEntry& entry);

 private:
  Limit::Card card(size_t free);
  void adopt(); // with the mutex
  bool wait_for_others(size_t growth);
  size_t excess();
  void give_excess_back();
  size_t stuck_bytes(); // with the mutex

  Device& device_;
  Limit rule_;
  size_t requested_ = 0; // 0: the default
  std::atomic<bool> is_new_{false}; // to the allocator
  // Bytes that the driver has refused, and that others may give.
  std::atomic<size_t> refused_{0};
  // More may be reserved than the limit since it changed.
  std::atomic<bool> is_to_obey_{false};
  double user_fraction_ = 1.0;
};

} // namespace at::cuda::lms
