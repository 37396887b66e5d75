#pragma once

#include <ATen/cuda/detail/LMSCoreResidence.h>
#include <ATen/cuda/detail/LMSCoreSpace.h>

#include <condition_variable>
#include <vector>

namespace at::cuda::lms {

// Note [Moving storages aside]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// What is free is rarely in one piece. Instead of paging out what lies between,
// a request that finds no gap has it moved to gaps elsewhere, where that is
// possible: a copy within the device takes a hundredth of the time of one to
// the host and back. It has a stream of its own, so that operators wait for it
// only where they need the bytes, or the memory that these lay in.
//
// Where what lies between is larger than any gap elsewhere, though not than all
// of them together, a gap is made for it first, in the same way. That goes no
// deeper: it is rarely needed, and takes the host's time.
//
// While it is moved a page is kArriving, as for a page-in: who needs it waits
// for the few calls that this takes. A pin keeps the entry alive.

// Joins free ranges by moving pages within the device. Called without the
// mutex.
class Relocator {
 public:
  Relocator(
      Books& books,
      Residence& residence,
      std::condition_variable& arrived)
      : books_(books), residence_(residence), arrived_(arrived) {}

  // Makes one gap for the request out of several, if that can be done without
  // paging anything out.
  void make_gap(const Request& wanted) noexcept;

 private:
  using Pages = std::vector<PageEntry*>;

  // False if there is a gap already.
  bool release_drained(Request& request);
  Clearing begin(const Request& request, Pages& moving);
  void move_out_of(
      const Clearing& clearing,
      const Pages& moving,
      const Extent& kept);
  DeviceMemory allocate(
      const PageEntry& page,
      const Extent& cleared,
      const Extent& kept,
      std::vector<DeviceMemory>& inside,
      Events& pending);
  bool has_room_for(const PageEntry& page);
  void move(PageEntry* page, DeviceMemory memory, const Events& pending);
  void end(const Pages& moving) noexcept;

  Books& books_;
  Residence& residence_;
  std::condition_variable& arrived_; // a page is kArriving no more
  uintptr_t hand_ = 0; // see Note [Bounded search]
};

} // namespace at::cuda::lms
