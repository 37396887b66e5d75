#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <utility>

namespace at::cuda::lms {

// What a byte takes to the host: the median over the bytes of the last copies.
// Some take many times as long, as those that the host launches while it
// page-locks memory.
class CopyRate {
 public:
  void add(size_t bytes, double us) {
    if (bytes < kLeast) {
      return;
    }
    last_.at(count_++ % kLast) = {
        1000 * us / static_cast<double>(bytes), bytes};
    auto sorted = last_; // those that are not there yet have no bytes
    std::sort(sorted.begin(), sorted.end());
    size_t sum = 0;
    for (const Copy& copy : sorted) {
      sum += copy.second;
    }
    const auto* copy = sorted.begin();
    for (size_t slower = sum; slower > sum / 2; ++copy) {
      slower -= copy->second;
      median_ = copy->first;
    }
  }
  // Nanoseconds; none before the first copy.
  std::optional<double> ns_per_byte() const {
    return median_;
  }

 private:
  using Copy = std::pair<double, size_t>; // nanoseconds per byte, bytes

  static constexpr size_t kLast = 31;
  // Those of fewer bytes take what it takes to launch them.
  static constexpr size_t kLeast = size_t{1} << 18;

  std::array<Copy, kLast> last_{};
  size_t count_ = 0;
  std::optional<double> median_;
};

// What a byte takes to the host, where a part of them goes on to a disk.
class CopyRates {
 public:
  void add_copy(size_t bytes, double us) {
    link_.add(bytes, us);
    note(static_cast<double>(bytes), 0);
  }
  void add_read(size_t bytes, double us) {
    disk_.add(bytes, us);
    note(0, static_cast<double>(bytes));
  }
  // Nanoseconds; none before the first copy. Where the host's memory is full,
  // what is copied there drives something out that has to be read again. So a
  // byte takes longer by as much of the time from the disk as bytes are read
  // from it for each that is copied to the host.
  std::optional<double> ns_per_byte() const {
    const auto link = link_.ns_per_byte();
    const double more = disk_.ns_per_byte().value_or(0) - link.value_or(0);
    const double share = read_ < copied_ ? read_ / copied_ : 1;
    return link && read_ > 0 ? *link + share * std::max(more, 0.0) : link;
  }

 private:
  // Bytes lately: of so many copies and reads, about.
  static constexpr double kLately = 512;

  void note(double copied, double read) {
    copied_ += copied - copied_ / kLately;
    read_ += read - read_ / kLately;
  }

  CopyRate link_;
  CopyRate disk_;
  double copied_ = 0;
  double read_ = 0;
};

} // namespace at::cuda::lms
