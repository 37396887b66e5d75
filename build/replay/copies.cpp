#include "copies.h"

#include <algorithm>
#include <cmath>

namespace lms_replay {
namespace {

constexpr double kSecond = 1e12; // picoseconds
constexpr Time kLatency = 10'000'000; // of a copy: 10 us

} // namespace

Interval CopyEngine::copy(size_t bytes, Time earliest) {
  const Time begin = std::max(free(), earliest);
  const double transfer = static_cast<double>(bytes) / bandwidth_ * kSecond;
  copies_.push_back({begin, begin + kLatency + std::llround(transfer)});
  return copies_.back();
}

Time CopyEngine::duration(size_t skipped) const {
  Time sum = 0;
  for (size_t i = skipped; i < copies_.size(); ++i) {
    sum += copies_[i].end - copies_[i].begin;
  }
  return sum;
}

Time CopyEngine::hidden(size_t skipped, const std::vector<Interval>& computing)
    const {
  Time sum = 0;
  size_t at = 0;
  for (size_t i = skipped; i < copies_.size(); ++i) {
    const Interval& copy = copies_[i];
    while (at < computing.size() && computing[at].end <= copy.begin) {
      ++at;
    }
    for (size_t j = at; j < computing.size() && computing[j].begin < copy.end;
         ++j) {
      sum += std::min(copy.end, computing[j].end) -
          std::max(copy.begin, computing[j].begin);
    }
  }
  return sum;
}

} // namespace lms_replay
