#include <ATen/cuda/detail/LMSCudaTimes.h>

#include <algorithm>
#include <utility>

namespace at::cuda::lms {
namespace {

// Spans that are kept before anybody asks which of them have passed.
constexpr size_t kKeptSpans = 1024;

} // namespace

void Times::add(Activity activity, Event begin, Event end, size_t bytes) {
  pending_.push_back({activity, std::move(begin), std::move(end), bytes});
  if (pending_.size() > collect_at_) {
    if (collect_at_ > 0) {
      collect();
    }
    collect_at_ = std::max(kKeptSpans, 2 * pending_.size());
  }
}

const TimesSpent& Times::totals() noexcept {
  collect();
  return totals_;
}

void Times::add_mark(uint64_t mark, Event event) {
  marks_.emplace_back(mark, std::move(event));
}

const Clock& Times::clock() noexcept {
  collect();
  while (!marks_.empty() && has_happened(marks_.front().second)) {
    try {
      const Event& event = marks_.front().second;
      clock_.mark_us = passed_ ? microseconds_between(passed_, event) : 0;
      clock_.mark = marks_.front().first;
      passed_ = event;
    } catch (const c10::Error&) {
      (void)cudaGetLastError(); // a time is lost, and no more
    }
    marks_.pop_front();
  }
  clock_.copy_ns = copy_ns();
  return clock_;
}

void Times::collect() noexcept {
  while (!pending_.empty() && has_happened(pending_.front().end)) {
    const Span& span = pending_.front();
    try {
      const double us = microseconds_between(span.begin, span.end);
      TimeSpent& total = totals_.at(static_cast<size_t>(span.activity));
      ++(us < kNoWait ? total.none : total.times);
      total.us += us;
      if (span.activity == Activity::kPageOut) {
        rates_.add_copy(span.bytes, us);
      } else if (span.activity == Activity::kReadDisk) {
        rates_.add_read(span.bytes, us);
      }
    } catch (const c10::Error&) {
      (void)cudaGetLastError(); // a time is lost, and no more
    }
    pending_.pop_front();
  }
}

} // namespace at::cuda::lms
