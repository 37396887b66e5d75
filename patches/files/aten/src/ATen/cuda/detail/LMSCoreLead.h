#pragma once

#include <ATen/cuda/detail/LMSCorePolicy.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

namespace at::cuda::lms {

// Note [The host's lead]
// ~~~~~~~~~~~~~~~~~~~~~~
// The host launches operators ahead of the device. What is to be copied, and
// when, is decided at a launch, from what is known by then; so a host that is
// far ahead has to queue copies long before they can begin, and what turns out
// to be needed soon queues behind them. Further still, and a stream is full:
// CUDA then stops the host until that stream moves on, and if that is the one
// of page-ins, the device soon has nothing to do. So while copies are under
// way the host waits where it has got too far ahead. That costs nothing: the
// device still has as much work queued as the host is ahead.
//
// The lead is counted in operators, and in bytes that they touch, which stand
// for their time: small ones take less of it than a host that is held up
// (another process, Python's collector) may need to catch up. To make bytes
// again holds the host up for longer. Where that is done the lead is counted in
// the operators' time instead, if it is known; copies, which a shorter one
// helps more, are few then.

// As far as the operators' times are known, the host is no further ahead.
constexpr uint64_t kMostLead = 8'000'000; // nanoseconds

// Marks are put behind groups of operators; the host stays at most kMarks ahead
// of the device. A mark is what tells when its group has ended.
template <class Mark> class Lead {
 public:
  // Notes an operator that has been launched. True if a mark is to be put
  // behind it.
  bool add(const Operator& op, bool makes_again) {
    ++operators_;
    ns_ += makes_again && op.ns > 0 ? op.ns : time_of(touched_by(op));
    return operators_ >= kOperators && ns_ >= kNs;
  }

  // Returns the mark that the host has to wait for, if it is too far ahead.
  std::optional<Mark> put(Mark mark) {
    marks_.push_back(std::move(mark));
    operators_ = 0;
    ns_ = 0;
    if (marks_.size() <= kMarks) {
      return std::nullopt;
    }
    Mark overtaken = std::move(marks_.front());
    marks_.pop_front();
    return overtaken;
  }

  // The host may go ahead as far as it likes.
  void clear() {
    marks_.clear();
  }

 private:
  // Of a group, at least.
  static constexpr size_t kOperators = 4;
  static constexpr size_t kMarks = 4;
  static constexpr uint64_t kNs = kMostLead / kMarks;
  static constexpr uint64_t kBytes = uint64_t{256} << 20; // for kNs

  static uint64_t time_of(uint64_t bytes) { // rounded up
    return (bytes * kNs + kBytes - 1) / kBytes;
  }
  static uint64_t touched_by(const Operator& op) {
    uint64_t bytes = 0;
    for (const Use& use : op.uses) {
      bytes += use.page->bytes;
    }
    return bytes;
  }

  std::deque<Mark> marks_;
  size_t operators_ = 0; // since the last mark
  uint64_t ns_ = 0; // that they take, nanoseconds
};

} // namespace at::cuda::lms
