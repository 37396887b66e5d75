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

// What a byte takes to the host, where it may have to go on to a disk.
class CopyRates {
 public:
  void add_copy(size_t bytes, double us) {
    link_.add(bytes, us);
    ++copies_since_read_;
  }
  void add_read(size_t bytes, double us) {
    disk_.add(bytes, us);
    copies_since_read_ = 0;
  }
  // Nanoseconds; none before the first copy. While a disk is in use the host's
  // memory is full, and what is copied there drives something out: then a byte
  // takes as long as from the disk.
  std::optional<double> ns_per_byte() const {
    const auto link = link_.ns_per_byte();
    const bool uses_disk = copies_since_read_ < kCopiesWithoutDisk;
    return link && uses_disk ? std::max(*link, disk_.ns_per_byte().value_or(0))
                             : link;
  }

 private:
  // After so many copies without a read it is out of use.
  static constexpr size_t kCopiesWithoutDisk = 256;

  CopyRate link_;
  CopyRate disk_;
  size_t copies_since_read_ = kCopiesWithoutDisk;
};

} // namespace at::cuda::lms
