#pragma once

#include <ATen/cuda/detail/LMSCudaDurations.h>
#include <ATen/cuda/detail/LMSOperatorRecipe.h>
#include <c10/util/FunctionRef.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace at::cuda::lms {

class Device;
struct Operator;

// The recipes of a device's storages, and making again what has been dropped
// (Note [Recipes], Note [What dropped pages are made from]).
class Recipes final : public Values {
 public:
  explicit Recipes(Device& device);

  // Operators are looked at: they are kept, or a trace says which can be.
  bool are_wanted() const;

  // --- operators, see Recipe::begin ---

  // The operator is launched; what it has written to is still pinned. With the
  // mutex.
  void end_written(
      const std::shared_ptr<Recipe>& recipe,
      c10::ArrayRef<c10::IValue> results);
  // Its results are managed. With the mutex.
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
  // Makes what the operator touches, and what is made from storages that it
  // writes to. The caller holds references to the storages.
  void prepare(const Accesses& accesses);
  // Makes a page that is dropped, unless somebody else does.
  void make(ManagedStorage* page);
  // Makes what depends on the storage, which the caller holds a reference to.
  void make_dependents(ManagedStorage* source);

  // Bytes that were made since the last operator for its storages to be made
  // from. They stay until they are used themselves.
  size_t take_made_as_sources() {
    return made_as_sources_.exchange(0, std::memory_order_relaxed);
  }

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
  bool give_up(ManagedStorage* page, bool at_any_cost);
  // The storage is gone. False if the record is kept, which has another storage
  // then.
  bool may_end(ManagedStorage* record);

 private:
  bool is_allowed() const override;
  uint64_t ns_of(const Ingredients& recipe) const override;
  double copy_ns() override;
  void on_needless(PageEntry& page) override;

  using Storages = std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>>;

  void make_sources(const ManagedStorage& page);
  Storages dropped_sources_of(const ManagedStorage& page);
  Storages dependents_of(const ManagedStorage& source);
  size_t make_all(c10::function_ref<Storages()> list);
  torch::jit::Stack run(const Value& value);
  c10::Storage storage_of(const ValuePtr& value);

  Device& device_;
  std::atomic<bool> are_any_{false}; // for ever
  std::atomic<size_t> made_as_sources_{0};
  Durations durations_; // of operators, by Recipe::signature or like it
  // Kept for others, needed no more; to be let go without the mutex.
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> orphans_;
  std::atomic<bool> has_orphans_{false};
};

} // namespace at::cuda::lms
