#pragma once

#include <ATen/cuda/detail/LMSCoreLead.h>
#include <ATen/cuda/detail/LMSCoreWorld.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>

namespace at::cuda::lms {

// The copies between the device and the host that are under way, and what the
// host knows of them.
class Progress {
 public:
  explicit Progress(World& world) : world_(world) {}

  // A write-back of so many bytes has been queued, `end` its end. Returns the
  // bytes that were sent so far, with these.
  uint64_t add_write_back(Event end, size_t bytes);
  // A page-in has been queued. Returns which one of all it is.
  uint64_t add_arrival(Event end);
  // True if no page-in of the kind waits yet for the write-back, or for a later
  // one: they end in order.
  bool must_await(uint64_t written_back_at, bool is_urgent) const {
    return written_back_at > awaited_[is_urgent ? 1 : 0];
  }
  // A page-in waits for it.
  void note_awaited(uint64_t written_back_at, bool is_urgent) {
    uint64_t& awaited = awaited_[is_urgent ? 1 : 0];
    awaited = std::max(awaited, written_back_at);
  }

  // Bytes sent to the host, ever.
  uint64_t sent() const {
    return sent_;
  }
  // Of these, as far as the host knew when it last asked.
  uint64_t drained() const {
    return drained_;
  }
  // Bytes that are still on their way to the host.
  uint64_t leaving() {
    note_write_backs();
    return sent_ - drained_;
  }
  // Page-ins that are not known to have ended, and those begun after them.
  size_t arriving() const {
    return arriving_.size();
  }
  void note_arrivals();
  // Finds out what has drained and arrived by now, and tells the request.
  void tell(Request& request);

  // `op` has been launched on the stream. The end of the operators that the
  // host is too far ahead of; empty if there are none such. See Note [The
  // host's lead].
  Events overtaken_by(const Operator& op, Stream stream, bool makes_again);

 private:
  struct WriteBack {
    Event end;
    uint64_t drained_at; // see Page
  };

  void note_write_backs();

  World& world_;
  std::deque<WriteBack> write_backs_; // not known to have ended, oldest first
  std::deque<Event> arriving_; // the same
  Lead<Events> lead_;
  uint64_t arrived_ = 0; // page-ins known to have ended
  // The latest write-back that page-ins wait for: the others, and urgent ones.
  std::array<uint64_t, 2> awaited_{};
  uint64_t sent_ = 0;
  uint64_t drained_ = 0;
};

} // namespace at::cuda::lms
