#include <ATen/cuda/detail/LMSCudaDurations.h>

#include <algorithm>
#include <utility>

namespace at::cuda::lms {

bool Durations::is_wanted(uint64_t signature) {
  collect();
  if (all_.size() > kMost) {
    all_.clear();
  }
  Duration& one = all_[signature];
  if (pending_.size() >= kMostPending || one.wanted <= 0) {
    return false;
  }
  ++one.tries;
  return one.tries <= kMostTries || one.tries % kSeldom == 0;
}

void Durations::add(uint64_t signature, Event begin, Event end) {
  --all_[signature].wanted;
  pending_.push_back({signature, std::move(begin), std::move(end)});
}

void Durations::collect() {
  while (!pending_.empty() && has_happened(pending_.front().end)) {
    const Span& span = pending_.front();
    const double us = microseconds_between(span.begin, span.end);
    const auto ns = std::max<uint64_t>(1, static_cast<uint64_t>(1000 * us));
    uint64_t& least = all_[span.signature].ns;
    least = least == 0 ? ns : std::min(least, ns);
    pending_.pop_front();
  }
}

} // namespace at::cuda::lms
