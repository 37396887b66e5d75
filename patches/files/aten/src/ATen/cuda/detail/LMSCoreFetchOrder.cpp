#include <ATen/cuda/detail/LMSCoreFetchOrder.h>

#include <algorithm>
#include <set>
#include <utility>

namespace at::cuda::lms {
namespace {

// A page comes this long before its use at most, if it would fill the room that
// is left over for those on their way: see Note [Planning an iteration], 4.
// What the host asks the device for takes it milliseconds, and most pages come
// within those.
constexpr uint64_t kFarAhead = 4096; // operators

} // namespace

FetchOrder::FetchOrder(
    const Plan& plan,
    const std::vector<int64_t>& resident,
    size_t capacity,
    size_t kept)
    : plan_(plan),
      resident_(resident),
      limit_(static_cast<int64_t>(capacity)),
      kept_(static_cast<int64_t>(kept)),
      fetches_(plan.length()) {}

std::vector<uint32_t> FetchOrder::run_cycle(
    const std::vector<uint32_t>& earlier) {
  const uint32_t n = plan_.length();
  for (const uint32_t number : earlier) {
    const Interval& it = plan_.at(number);
    waiting_.emplace(uint64_t{it.begin} + it.length - n, number);
  }
  for (uint32_t now = 0; now < n; ++now) {
    for (uint32_t slot = 0; slot < plan_.slots(now); ++slot) {
      const uint32_t number = plan_.number(now, slot);
      const Interval& it = plan_.at(number);
      if (it.is_evicted && it.is_copied && it.length > 0) {
        waiting_.emplace(uint64_t{now} + it.length, number);
      }
    }
    fetch_at(now);
  }
  std::vector<uint32_t> rest;
  for (auto copy = waiting_; !copy.empty(); copy.pop()) {
    rest.push_back(copy.top().second);
  }
  return rest;
}

std::vector<std::vector<uint32_t>> FetchOrder::run_rest(
    const std::vector<uint32_t>& earlier) {
  const std::set<uint32_t> placed(earlier.begin(), earlier.end());
  Queue rest;
  for (; !waiting_.empty(); waiting_.pop()) {
    if (placed.count(waiting_.top().second) == 0) {
      rest.push(waiting_.top());
    }
  }
  waiting_ = std::move(rest);
  for (uint64_t now = plan_.length(); !waiting_.empty(); ++now) {
    fetch_at(now);
  }
  return std::move(fetches_);
}

void FetchOrder::fetch_at(uint64_t now) {
  const uint64_t after = (now + 1) % plan_.length();
  while (!waiting_.empty()) {
    const auto [end, number] = waiting_.top();
    const auto bytes = static_cast<int64_t>(plan_.at(number).bytes);
    const uint64_t idle = end - now - 1; // operators in between
    if (!has_room(after, idle, bytes)) {
      break;
    }
    resident_.add(after, idle, bytes);
    fetches_[now % plan_.length()].push_back(number);
    waiting_.pop();
  }
}

// For a page that is idle for so many operators.
bool FetchOrder::has_room(size_t after, uint64_t idle, int64_t bytes) const {
  const uint64_t far = idle - std::min(idle, kFarAhead);
  return (far == 0 || resident_.maximum(after, far) + bytes <= kept_) &&
      (idle == 0 || resident_.maximum(after, idle) + bytes <= limit_);
}

} // namespace at::cuda::lms
