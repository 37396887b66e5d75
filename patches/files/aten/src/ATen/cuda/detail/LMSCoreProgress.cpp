#include <ATen/cuda/detail/LMSCoreProgress.h>

#include <utility>

namespace at::cuda::lms {

uint64_t Progress::add_write_back(Event end, size_t bytes) {
  sent_ += bytes;
  write_backs_.push_back({std::move(end), sent_});
  return sent_;
}

uint64_t Progress::add_arrival(Event end) {
  arriving_.push_back(std::move(end));
  return arrived_ + arriving_.size();
}

void Progress::note_arrivals() {
  while (!arriving_.empty() && world_.has_happened(arriving_.front())) {
    ++arrived_;
    arriving_.pop_front();
  }
}

void Progress::note_write_backs() {
  // They end in order: the first that has not ended is the last to ask.
  while (!write_backs_.empty() &&
         world_.has_happened(write_backs_.front().end)) {
    drained_ = write_backs_.front().drained_at;
    write_backs_.pop_front();
  }
}

void Progress::tell(Request& request) {
  note_arrivals();
  note_write_backs();
  request.arrived = arrived_;
  request.sent = request.drained = sent_;
}

Events Progress::overtaken_by(
    const Operator& op,
    Stream stream,
    bool makes_again) {
  if (arriving_.empty() && write_backs_.empty() && !world_.bounds_lead()) {
    lead_.clear();
    return {};
  }
  if (!lead_.add(op, makes_again) || !op.may_wait) {
    return {};
  }
  note_arrivals();
  note_write_backs();
  return lead_.put(world_.queued(stream)).value_or(Events());
}

} // namespace at::cuda::lms
