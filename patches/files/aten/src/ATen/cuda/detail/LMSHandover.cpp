#include <ATen/cuda/detail/LMSHandover.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

namespace at::cuda::lms {
namespace {

void add(Handover::Events& events, const Event& event) {
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

Handover::Events Handover::take(uintptr_t address, size_t size) {
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

Handover::Events Handover::take_all() {
  return take(0, std::numeric_limits<uintptr_t>::max());
}

} // namespace at::cuda::lms
