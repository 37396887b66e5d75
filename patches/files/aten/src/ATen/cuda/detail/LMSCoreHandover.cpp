#include <ATen/cuda/detail/LMSCoreHandover.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace at::cuda::lms {
namespace {

void add(Events& events, const Event& event) {
  if (event && std::find(events.begin(), events.end(), event) == events.end()) {
    events.push_back(event);
  }
}

} // namespace

void Handover::put(uintptr_t address, size_t size, const Events& events) {
  if (events.empty()) {
    return;
  }
  Events all = take(address, size);
  for (const Event& event : events) {
    add(all, event);
  }
  if (!all.empty()) {
    ranges_.emplace(address, Range{size, std::move(all)});
  }
}

Events Handover::take(uintptr_t address, size_t size) {
  Events taken;
  const uintptr_t end = address + size;
  auto it = ranges_.lower_bound(address);
  if (it != ranges_.begin()) {
    if (auto left = std::prev(it); left->first + left->second.size > address) {
      it = left;
    }
  }
  while (it != ranges_.end() && it->first < end) {
    const uintptr_t begin = it->first;
    Range range = std::move(it->second);
    it = ranges_.erase(it);
    for (const Event& event : range.events) {
      add(taken, event);
    }
    if (begin < address) {
      ranges_.emplace(begin, Range{address - begin, range.events});
    }
    if (const uintptr_t range_end = begin + range.size; range_end > end) {
      ranges_.emplace(end, Range{range_end - end, std::move(range.events)});
    }
  }
  return taken;
}

Events Handover::pending() const {
  Events all;
  for (const auto& [address, range] : ranges_) {
    for (const Event& event : range.events) {
      add(all, event);
    }
  }
  return all;
}

void Handover::forget(const Events& events) {
  for (auto it = ranges_.begin(); it != ranges_.end();) {
    Events& left = it->second.events;
    const auto has_ended = [&events](const Event& event) {
      return std::find(events.begin(), events.end(), event) != events.end();
    };
    left.erase(std::remove_if(left.begin(), left.end(), has_ended), left.end());
    it = left.empty() ? ranges_.erase(it) : std::next(it);
  }
}

} // namespace at::cuda::lms
