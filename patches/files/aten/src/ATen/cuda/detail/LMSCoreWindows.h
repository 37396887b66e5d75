#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace at::cuda::lms {

// Where in the sequence of operators a hash was seen last, in a table of a
// fixed size. A hash has kWays places; where all are taken, what goes first is
// the oldest of those that were to be known for `recent` operators only, and
// then the oldest of all.
class Windows {
 public:
  explicit Windows(uint64_t recent) : recent_(recent) {}

  // The index of the operator is that of the latest one.
  void insert(uint64_t hash, uint64_t index, bool is_for_long);
  // Index of the latest operator with this hash, 0 if none is known. It may be
  // that of another one, once in 2^45 hashes.
  uint64_t find(uint64_t hash, uint64_t now) const;

  size_t bytes() const {
    return buckets_.size() * sizeof(Bucket);
  }

 private:
  static constexpr size_t kWays = 8;
  static constexpr size_t kBuckets = size_t{1} << 17; // 8 MiB
  struct Place {
    uint32_t index = 0; // its lowest bits
    uint32_t tag = 0; // of the hash; 0: free
    bool is_for_long() const {
      return (tag & 1) != 0;
    }
    bool has(uint32_t of_hash) const {
      return (tag | 1) == of_hash;
    }
  };
  using Bucket = std::array<Place, kWays>;

  static uint32_t tag_of(uint64_t hash);
  static size_t bucket_of(uint64_t hash);
  static uint64_t age_of(const Place& place, uint64_t now);

  uint64_t recent_;
  std::vector<Bucket> buckets_; // made with the first operator
};

} // namespace at::cuda::lms
