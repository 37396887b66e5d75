#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <tuple>
#include <vector>

namespace at::cuda::lms {

struct HostRange {
  char* begin;
  size_t bytes;
};

// Where the bytes of one storage lie, in order. Empty: nowhere.
using HostPieces = std::vector<HostRange>;

// The free ranges of some slabs of memory: exact, best fit, neighbours merged.
// Does not touch the memory. Not thread safe. This file includes no PyTorch.
class HostRanges {
 public:
  // What no free range is large enough for lies in at most so many of them,
  // none but the last smaller than this: each piece is a copy of its own, and
  // to start one takes as long as a fast link takes for 4 MiB.
  static constexpr size_t kMostPieces = 16;
  static constexpr size_t kLeastPiece = size_t{4} << 20; // bytes

  // All of the slab is free from now on.
  void add_slab(char* begin, size_t bytes);
  // Forgets the slab if all of it is free, else does nothing. True if it did.
  bool remove_slab(char* begin);

  // Of the smallest free range that is large enough, or else of the largest
  // ones. Empty if there is no room.
  HostPieces take(size_t bytes);
  // What `take` gave, or a piece of it.
  void give_back(HostRange range);

  // Bytes of the largest request that can be served.
  size_t room() const;

 private:
  using Free = std::map<char*, size_t>; // bytes by address
  struct Slab {
    size_t bytes;
    size_t number; // in the order in which they came
  };
  // Of ranges of one size, that of the older slab is taken. The system is free
  // to give slabs any addresses, and the same requests get the same memory.
  using BySize = std::tuple<size_t, size_t, char*>; // bytes, slab, address

  void insert(HostRange range);
  Free::iterator erase(Free::iterator range);
  BySize key(HostRange range) const;

  std::map<char*, Slab> slabs_; // by address
  size_t last_number_ = 0;
  Free free_;
  std::set<BySize> free_by_size_;
};

} // namespace at::cuda::lms
