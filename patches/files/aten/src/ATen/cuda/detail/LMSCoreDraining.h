#pragma once

#include <ATen/cuda/detail/LMSCoreFreed.h>
#include <ATen/cuda/detail/LMSCoreHandover.h>
#include <ATen/cuda/detail/LMSCoreMemoryMap.h>
#include <ATen/cuda/detail/LMSCoreProgress.h>

#include <list>

namespace at::cuda::lms {

// Device memory that its page does not need any more. It is kept until `events`
// have happened or somebody needs it: a policy sees a page that can be evicted
// for nothing.
struct Draining final : Page {
  DeviceMemory memory;
  Block* block = nullptr; // null: unknown to the map
  Events events; // of the work that reads from it
  std::list<Draining>::iterator self; // in the list of all
};

// Memory that copies still read from: what is kept until they have read it, and
// what goes back to the allocator before (Note [Handing memory over]).
class DrainingMemory {
 public:
  DrainingMemory(World& world, MemoryMap& map) : world_(world), map_(map) {}

  // `events`: of the work on it. `sent`: bytes sent to the host so far, the
  // page's own among them.
  Draining& keep(PageEntry& page, Events events, uint64_t sent);
  // It goes to the allocator, when the mutex is given back. The reference is
  // void then.
  void hand_over(Draining& draining, Freed& freed);
  // The same for memory that nobody keeps.
  void free_after(const Events& events, DeviceMemory memory, Freed& freed);
  void hand_all_over(Freed& freed);
  // What nothing reads any more, as far as was known when progress was noted.
  void release_drained(const Progress& progress, Freed& freed);

  // Notes progress, and tells the request of it.
  void tell(Progress& progress, Request& request);
  // Oldest first.
  std::list<Draining>& all() {
    return all_;
  }
  Handover& handover() {
    return handover_;
  }
  Events not_happened(const Events& events) const;

 private:
  void make_wait(Stream stream, const Events& events) noexcept;

  World& world_;
  MemoryMap& map_;
  std::list<Draining> all_;
  Handover handover_;
};

} // namespace at::cuda::lms
