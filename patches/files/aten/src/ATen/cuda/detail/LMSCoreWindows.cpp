#include <ATen/cuda/detail/LMSCoreWindows.h>

#include <utility>

namespace at::cuda::lms {

uint32_t Windows::tag_of(uint64_t hash) {
  return static_cast<uint32_t>(hash >> 32) | 3; // neither 0 nor 1
}

size_t Windows::bucket_of(uint64_t hash) {
  return (hash ^ (hash >> 20)) % kBuckets;
}

uint64_t Windows::age_of(const Place& place, uint64_t now) {
  return static_cast<uint32_t>(now) - place.index; // modulo 2^32
}

void Windows::insert(uint64_t hash, uint64_t index, bool is_for_long) {
  buckets_.resize(kBuckets);
  const uint32_t tag = tag_of(hash);
  Bucket& bucket = buckets_[bucket_of(hash)];
  Place* place = bucket.data();
  std::pair<int, uint64_t> most(-1, 0); // how dispensable it is
  for (Place& other : bucket) {
    const uint64_t age = age_of(other, index);
    const bool is_past = !other.is_for_long() && age > recent_;
    const int rank = other.has(tag) ? 3 : other.tag == 0 ? 2 : is_past ? 1 : 0;
    if (const std::pair candidate(rank, age); candidate > most) {
      place = &other;
      most = candidate;
    }
  }
  place->index = static_cast<uint32_t>(index);
  place->tag = is_for_long ? tag : tag - 1;
}

uint64_t Windows::find(uint64_t hash, uint64_t now) const {
  if (buckets_.empty()) {
    return 0;
  }
  const uint32_t tag = tag_of(hash);
  for (const Place& place : buckets_[bucket_of(hash)]) {
    if (place.has(tag)) {
      return now - age_of(place, now);
    }
  }
  return 0;
}

} // namespace at::cuda::lms
