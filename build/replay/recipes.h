#pragma once

#include <ATen/cuda/detail/LMSCoreValues.h>

#include "trace.h"
#include "world.h"

#include <map>
#include <memory>
#include <vector>

namespace lms_replay {

// A storage of the trace. Small ones are not paged: they stay on the device.
struct TracePage final : at::cuda::lms::PageEntry {
  TracePage(uint32_t number, bool is_paged)
      : PageEntry(/*home=*/nullptr), number(number), is_paged(is_paged) {}

  const uint32_t number;
  const bool is_paged;
};

using Pages = std::vector<std::unique_ptr<TracePage>>; // null: not alive

struct Access {
  TracePage* page;
  bool writes;
};
using Accesses = std::vector<Access>;

// Note [Making again in a replay]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Which bytes can be made again, from what, and what that obliges to is decided
// by the engine's own code (LMSCoreValues, Note [Recipes]). To make bytes again
// is done as the engine does it: what the operator read is pinned and brought,
// made again first if it was dropped; what no storage holds any more is made
// for the moment; memory is taken for all of its results, and given back but
// for what is wanted; and the compute stream runs it, for as long as at first.
// A written storage that was allocated since the operator before is a result of
// its operator; any other one was changed in place.

// What operators need: their storages on the device, made again where they were
// dropped.
class Recipes final : public at::cuda::lms::Values {
 public:
  Recipes(const Trace& trace, VirtualWorld& world, at::cuda::lms::Pager& pager)
      : Values(pager.books), trace_(trace), world_(world), pager_(pager) {}

  // Pins what an operator is about to use, and brings it. Throws NoRoom, with
  // nothing pinned.
  void pin(const Accesses& accesses);
  // With the pager's mutex.
  void unpin(const Accesses& accesses, at::cuda::lms::Freed& freed);

  // The operator has been launched. `pages`: by storage; `allocated`: those
  // since the operator before. With the pager's mutex.
  void keep(
      size_t op,
      const Pages& pages,
      const std::vector<uint32_t>& allocated);
  // How the time goes, for the policy. With the pager's mutex.
  void tell_times(size_t op, at::cuda::lms::Operator& told);

  // The storage is gone. What dropped pages are made from stays for them.
  void end(std::unique_ptr<TracePage> page);

  // What operators took that ran again.
  Time time() const {
    return time_;
  }

 private:
  using Memory = at::cuda::lms::DeviceMemory;
  using ValuePtr = at::cuda::lms::ValuePtr;

  bool is_allowed() const override {
    return true; // see Traits::makes_again
  }
  uint64_t ns_of(const at::cuda::lms::Ingredients& recipe) const override;
  double copy_ns() override {
    return world_.copy_ns();
  }
  void on_needless(at::cuda::lms::PageEntry& page) override;

  void try_pin(const Accesses& accesses);
  void prepare(const Accesses& accesses);
  void bring(TracePage* page);
  void note_writes(const Accesses& accesses);
  void make(TracePage* page);
  void make_dependents(TracePage* source);
  Memory run(const at::cuda::lms::Value& value);
  Memory allocate(uint32_t storage);
  void end_needless();

  const Trace& trace_;
  VirtualWorld& world_;
  at::cuda::lms::Pager& pager_;
  Time time_ = 0;
  // Gone, but dropped pages are made from it.
  std::map<const at::cuda::lms::PageEntry*, std::unique_ptr<TracePage>> kept_;
  std::vector<std::unique_ptr<TracePage>> needless_; // no more
};

} // namespace lms_replay
