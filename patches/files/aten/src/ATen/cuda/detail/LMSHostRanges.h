#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <utility>

namespace at::cuda::lms {

// The free ranges of some slabs of memory: exact, best fit, neighbours merged.
// Does not touch the memory. Not thread safe. This file includes no PyTorch.
class HostRanges {
 public:
  // All of the slab is free from now on.
  void add_slab(char* begin, size_t bytes);
  // Forgets the slab if all of it is free, else does nothing. True if it did.
  bool remove_slab(char* begin);

  // The smallest free range that is large enough; null if there is none.
  char* take(size_t bytes);
  // What `take` gave, with the same size.
  void give_back(char* begin, size_t bytes);

  // Bytes of the largest free range.
  size_t largest() const {
    return free_by_size_.empty() ? 0 : free_by_size_.rbegin()->first;
  }

 private:
  using Free = std::map<char*, size_t>; // bytes by address

  void insert(char* begin, size_t bytes);
  Free::iterator erase(Free::iterator range);

  std::map<char*, size_t> slabs_; // bytes by address
  Free free_;
  std::set<std::pair<size_t, char*>> free_by_size_;
};

} // namespace at::cuda::lms
