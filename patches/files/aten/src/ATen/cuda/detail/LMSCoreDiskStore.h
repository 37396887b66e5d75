#pragma once

#include <ATen/cuda/detail/LMSCoreHostStore.h>
#include <ATen/cuda/detail/LMSCoreStats.h>

#include <deque>
#include <memory>
#include <queue>
#include <string>
#include <utility>
#include <vector>

namespace at::cuda::lms {

// Note [Below the host's memory]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// What does not fit in the host's memory is on disk. A page goes there from the
// host's memory only, and comes back to it, so that the device never waits for
// a disk but by way of a copy that waits for host memory. Its bytes on disk
// hold until they are written to, as those on the host do: what is only read is
// written to disk once.
//
//    device  <-- the plan -->  host  <-- here -->  disk
//
// The host's memory is a cache of what is on disk, with the rule of the plan
// (Belady's): what is needed farthest in the future leaves first, what is
// needed soonest is read first, and is read only where something can leave for
// it that is needed later. When a page is needed is what the policy has
// foreseen of its next use. What it has not foreseen counts as needed after all
// that it has, and the longer ago it was used the later. What has a hint for
// the host counts as needed before all that has none (Note [Hints]).
//  - Copies of what is on the device go first: they only save a copy later.
//    Such a page has its bytes in one place then, so device and host together
//    hold as much as they can. When it leaves the device it is copied to the
//    host again, unless all that is there is needed sooner.
//  - Some of the host's memory is kept so that it can be given up at once,
//  since
//    the disk has its bytes: pages are written ahead of the shortage.
//
// Transfers are queued on streams, as copies are, and their ends are events.
// But what they have done counts when the host has seen that they succeeded:
// memory whose bytes could not be written is kept, and a page that could not be
// read is still on disk, and an error where it is needed.

// When a page's bytes are needed on the host: the greater, the later. First of
// all, without a hint for the host is later than with one.
using HostNeed = std::pair<bool, uint64_t>;

// The pages of a device that are on disk, and the traffic between host and
// disk. Called with the mutex.
class DiskStore {
 public:
  DiskStore(
      World& world,
      const PageTable& pages,
      HostStore& host,
      DeviceStats& stats)
      : world_(world), pages_(pages), host_(host), stats_(stats) {}

  // Memory for a page's copy, as HostStore::allocate, and what is there goes to
  // disk if it has to.
  HostPieces allocate(size_t bytes, HostMemory::Wait& wait);
  // Memory for a copy of a page that is on disk and leaves the device. Empty if
  // all that is on the host is needed sooner.
  HostPieces allocate_if_sooner(const PageEntry& page);
  // Has the bytes of a page read that is on disk only. False if the wait is
  // needed before the next call. Throws if they cannot be read, and may be
  // tried again.
  bool bring_to_host(PageEntry* page, HostMemory::Wait& wait);
  // What could not be read ahead may be read when it is needed.
  void forget_failure(PageEntry* page);
  // The bytes on disk are of no use any more.
  void drop(PageEntry* page);
  // Queues what should be read and written by now.
  void advance();
  // Why something has stayed in the host's memory, once; empty if nothing has.
  std::string take_failure() {
    return failure_.empty() ? std::string() : std::exchange(failure_, {});
  }

 private:
  using Transfers = std::deque<std::shared_ptr<DiskTransfer>>;
  struct IsNeededSooner {
    bool operator()(const PageEntry* page, const PageEntry* than) const;
  };
  struct IsNeededLater {
    bool operator()(const PageEntry* page, const PageEntry* than) const;
  };
  template <class IsBelow>
  using Queue =
      std::priority_queue<PageEntry*, std::vector<PageEntry*>, IsBelow>;
  // What can be done with the pages that are not under way. In queues, for only
  // some of the pages are asked for.
  struct Survey {
    Queue<IsNeededLater> on_disk; // only, the first to be needed on top
    Queue<IsNeededSooner> on_both; // the last to be needed on top
    Queue<IsNeededSooner> on_host; // only, likewise
    size_t on_host_bytes = 0; // of both
    size_t spare = 0; // of these, on disk as well
  };

  Survey survey() const;
  bool collect();
  bool collect(Transfers& transfers);
  void finish(DiskTransfer& transfer);
  bool start(
      DiskTransfer::Kind kind,
      PageEntry* page,
      std::shared_ptr<DiskSpace> space,
      HostPieces host);
  bool write(PageEntry* page);
  bool read(PageEntry* page, HostPieces host);
  HostPieces take_from(
      Survey& survey,
      size_t bytes,
      HostNeed later_than,
      HostMemory::Wait& wait);
  bool is_at_hand(size_t bytes);
  void read_ahead(Survey& survey);
  void write_behind(Survey& survey, size_t wanted);
  void put_on_disk(PageEntry* page, std::shared_ptr<DiskSpace> space);
  void await_one(HostMemory::Wait& wait);

  World& world_;
  const PageTable& pages_;
  HostStore& host_;
  DeviceStats& stats_;
  Transfers reads_; // under way, oldest first
  Transfers writes_;
  size_t reading_ = 0; // bytes
  size_t writing_ = 0;
  bool is_needed_ = false; // the host's memory was not enough, once
  size_t operators_ = 0; // since the last survey
  std::string failure_;
};

} // namespace at::cuda::lms
