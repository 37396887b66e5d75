#pragma once

#include <ATen/cuda/detail/LMSCudaDurations.h>
#include <ATen/cuda/detail/LMSOperatorRecipe.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace at::cuda::lms {

class Device;
struct Operator;

// Which bytes of a device can be made again, which have been dropped, and
// making them (Note [Recipes]).
//
// Note [What dropped pages are made from]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// When a page is dropped, all that it will be made from is noted: values that
// storages hold, its *sources*. Until the page is made or dies
//  - no operator writes to a source: what depends on it is made before;
//  - a source whose storage dies is kept: its record, with its memory and its
//    place in the books, moves to a storage that only LMS has.
// All of them are on this device.
// Sources may be paged out, and may be dropped themselves, up to kMostChained
// deep.
class Recipes {
 public:
  explicit Recipes(Device& device) : device_(device) {}

  // Operators are kept: memory is short, and the settings allow it.
  bool are_kept() const;

  // --- operators, see Recipe::begin ---

  // The operator is launched, its results are managed. With the mutex.
  void end(
      const std::shared_ptr<Recipe>& recipe,
      c10::ArrayRef<c10::IValue> results);
  // Tells the policy how the time goes. With the mutex.
  void tell_times(Operator& op, uint64_t signature);
  // Times an operator. `begin` is null if its time is known by now.
  struct Timing {
    Event begin;
    uint64_t waits = 0; // of streams until then
  };
  Timing begin_timing(uint64_t signature);
  void end_timing(uint64_t signature, Timing timing);

  // --- without the mutex ---

  // Something is known of what storages have. Read without the mutex.
  bool are_any() const {
    return are_any_.load(std::memory_order_relaxed);
  }
  void note_recipe() {
    are_any_.store(true, std::memory_order_relaxed);
  }
  // Some page is dropped. Read without the mutex.
  bool is_any_dropped() const {
    return dropped_.load(std::memory_order_relaxed) > 0;
  }
  // Makes what the operator touches, and what is made from storages that it
  // writes to. The caller holds references to the storages.
  void prepare(const Accesses& accesses);
  // Makes a page that is dropped, unless somebody else does.
  void make(ManagedStorage* page);
  // Makes what depends on the storage, which the caller holds a reference to.
  void make_dependents(ManagedStorage* source);

  // Lets go of what was kept for dropped pages and is needed no more.
  void free_orphans();
  // Makes what the storage has, which is resident and pinned, and compares: see
  // Settings::verify.
  void verify(ManagedStorage* page);
  // How many were compared, on any device, and the results that had other bits:
  // "aten::exp, result 0".
  static int64_t compared();
  static std::vector<std::string> differing();

  // --- with the mutex ---

  // See World.
  uint32_t gain(const ManagedStorage& page);
  bool give_up(ManagedStorage* page, bool at_any_cost);
  // The storage gets other bytes, or escapes. False if dropped pages need the
  // bytes that it has: those have to be made before.
  bool note_write(ManagedStorage* record);
  // The storage is gone. False if what is made from it still needs the record,
  // which has another storage then.
  bool may_end(ManagedStorage* record);
  // The record is taken off the books.
  void end(ManagedStorage* record);

 private:
  static constexpr int kMostSteps = 6; // to make one page
  static constexpr int kMostChained = 24; // pages, each made from the next

  struct Needs {
    std::vector<ValuePtr> sources;
    uint64_t ns = 0;
    bool is_timed = true; // the time is known
    int steps = 0;
    int chained = 0;
  };
  static int chain_below(const Value& value);
  static void raise(Value& value, int above);
  bool gather(const Value& value, Needs& needs);
  bool may_drop(const ManagedStorage& page, Needs& needs);
  uint32_t gain_by(const Needs& needs, size_t bytes);
  double copy_ns();
  torch::jit::Stack run(const Value& value);
  c10::Storage storage_of(const ValuePtr& value);
  void let_go_of_sources(ManagedStorage* page);
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> dependents_of(
      const ManagedStorage& source);
  static int steps_to_make(const Value& value);
  static void lose(Value& value);

  Device& device_;
  std::atomic<bool> are_any_{false}; // for ever
  std::atomic<size_t> dropped_{0};
  Durations durations_; // of operators, by Recipe::signature or like it
  // Kept for others, needed no more; to be let go without the mutex.
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> orphans_;
  std::atomic<bool> has_orphans_{false};
};

} // namespace at::cuda::lms
