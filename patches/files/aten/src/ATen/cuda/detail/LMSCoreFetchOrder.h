#pragma once

#include <ATen/cuda/detail/LMSCorePlan.h>
#include <ATen/cuda/detail/LMSCoreRangeMaximum.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

namespace at::cuda::lms {

// Finds when pages come back, going through the operators of a cycle: the page
// that is needed first goes first, as soon as there is room for it until then.
class FetchOrder {
 public:
  // `resident`: bytes by position if all pages come back with their next use.
  // `kept`: the part of the capacity that a page may fill long before its use.
  FetchOrder(
      const Plan& plan,
      const std::vector<int64_t>& resident,
      size_t capacity,
      size_t kept);

  // Goes through one cycle, at the beginning of which the intervals `earlier`
  // wait to come back. Returns those that do at the end.
  std::vector<uint32_t> run_cycle(const std::vector<uint32_t>& earlier);
  // Finds a place in the next cycle for those that have none yet. Returns the
  // intervals by the operator after which their pages come back.
  std::vector<std::vector<uint32_t>> run_rest(
      const std::vector<uint32_t>& earlier);

 private:
  // The next use and the interval's number, the first needed on top.
  using Waiting = std::pair<uint64_t, uint32_t>;
  using Queue =
      std::priority_queue<Waiting, std::vector<Waiting>, std::greater<>>;

  void fetch_at(uint64_t now);
  bool has_room(size_t after, uint64_t idle, int64_t bytes) const;

  const Plan& plan_;
  RangeMaximum resident_; // bytes by position
  const int64_t limit_;
  const int64_t kept_;
  std::vector<std::vector<uint32_t>> fetches_; // by position
  Queue waiting_;
};

} // namespace at::cuda::lms
