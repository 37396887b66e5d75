#pragma once

#include <ATen/cuda/detail/LMSCoreCopyRate.h>
#include <ATen/cuda/detail/LMSCorePager.h>
#include <ATen/cuda/detail/LMSCoreValues.h>

#include "link.h"
#include "machine.h"
#include "memory.h"
#include "timeline.h"

#include <array>
#include <deque>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

// What an event is here: a copy, or a moment of the compute stream.
struct CUevent_st {
  lms_replay::CopyId copy = lms_replay::kNoCopy;
  lms_replay::Time time = 0; // if it is no copy
  bool is_page_in = false;
};

namespace lms_replay {

// Why an operator waited: for the last of what it needs to arrive. A page-in
// that itself waited for memory counts as memory for that long, and so do
// copies within the device. Or the host had not asked for it.
enum class Stall { kDemanded, kLate, kMemory, kHost };
constexpr size_t kStallCauses = 4;

// There is no memory for something, whatever is evicted.
struct NoRoom : std::runtime_error {
  NoRoom(size_t wanted, size_t missing)
      : std::runtime_error("no room"), wanted(wanted), missing(missing) {}

  size_t wanted; // contiguous bytes
  size_t missing; // of these, when all that can be evicted is
};

// Note [Virtual time]
// ~~~~~~~~~~~~~~~~~~~
// Program order decides what happens, clocks decide when: that of the compute
// stream, that of the link with its engines for the copies, and the host's,
// which runs ahead of the device as far as the depth of streams lets it. The
// compute stream's clock says when all that is queued on it will be done, so it
// is known as soon as something is queued: whatever it waits for is already
// queued as well.
//  - A copy begins when what it waits for has ended and its engine is free.
//  - Within the device pages move by an engine that has half of the memory's
//    bandwidth and slows nothing down.
//  - What the pager knows of the copies is what has happened by the host's
//    clock: memory that has drained may count as draining still.
//  - So it is with times: the policy learns what an operator took when it is
//    launched, and of the rest what has ended by the host's clock.
//  - The disk does one thing after the other, each from when the host asks for
//    it, or when what it waits for has ended.
//  - A policy that blocks the host has it wait for each copy, and the device
//    with it.

// A device in virtual time, with one stream that computes, for the pager.
class VirtualWorld final : public at::cuda::lms::World {
 public:
  using Page = at::cuda::lms::PageEntry;

  // `timeline`, if it is not null, is told what happens.
  VirtualWorld(
      const Machine& machine,
      const at::cuda::lms::Traits& traits,
      Timeline* timeline);

  // Its memory is on the pager's map from now on. Called once, first of all.
  void start(
      at::cuda::lms::Pager& pager,
      at::cuda::lms::Values& values,
      size_t capacity);
  Link& link() {
    return link_;
  }

  // --- the program ---

  // Memory for the storage, which the next operator uses. Throws NoRoom.
  at::cuda::lms::DeviceMemory allocate_for_operator(
      size_t storage,
      size_t bytes);
  // The operator is asked for and launched; it takes so long. `made`: again,
  // for the bytes of this storage.
  void launch(size_t op, Time duration, size_t made = kNone);
  // When all that is queued is done, but for copies.
  Time now() const {
    return now_;
  }
  Time stalled(Stall cause) const {
    return stalls_[static_cast<size_t>(cause)];
  }
  // What the host knows of the time: that of operators, and nanoseconds that a
  // byte has taken to the host.
  at::cuda::lms::Clock clock();
  double copy_ns();
  // When operators ran, in order.
  const std::vector<Interval>& computing() const {
    return computing_;
  }

  // --- the pager ---

  at::cuda::lms::DeviceMemory allocate(
      const Page& page,
      bool is_ahead,
      at::cuda::lms::Events& pending) override;
  void free(void* memory) noexcept override;
  size_t block_size_for(size_t bytes) const override;
  size_t growth_for(size_t bytes) const override;
  at::cuda::lms::Event copy(const at::cuda::lms::Copy& copy) override;
  at::cuda::lms::Events queued(at::cuda::lms::Stream stream) noexcept override;
  bool may_be_another(at::cuda::lms::Stream stream) const override;
  void wait(
      at::cuda::lms::Stream stream,
      const at::cuda::lms::Events& events,
      std::optional<at::cuda::lms::Activity> counted) override;
  void mark(at::cuda::lms::Stream stream, uint64_t mark) override;
  uint32_t gain(const Page& page) override;
  bool give_up(Page& page, bool at_any_cost) override;
  void note_departure(
      const Page& page,
      at::cuda::lms::Departure how,
      size_t room) override;
  bool has_happened(const at::cuda::lms::Event& event) const override;
  bool wait_on_host(const at::cuda::lms::Event& event) noexcept override;
  at::cuda::lms::HostPieces allocate_on_host(
      size_t bytes,
      at::cuda::lms::HostMemory::Claim claim,
      at::cuda::lms::HostMemory::Wait& wait) override;
  void free_on_host(
      at::cuda::lms::HostPieces pieces,
      at::cuda::lms::Event ready) override;
  bool finish(at::cuda::lms::HostMemory::Wait& wait) override;
  bool has_disk() const override;
  std::shared_ptr<at::cuda::lms::DiskSpace> allocate_on_disk(
      size_t bytes) override;
  void transfer(
      const std::shared_ptr<at::cuda::lms::DiskTransfer>& queued,
      const at::cuda::lms::Event& after) override;
  const at::cuda::lms::Traits& traits() const override;
  void warn(const char* what, const std::exception& error) noexcept override;

 private:
  at::cuda::lms::DeviceMemory take(
      size_t bytes,
      at::cuda::lms::Events& pending);
  at::cuda::lms::DeviceMemory take_with_room(
      size_t bytes,
      at::cuda::lms::Events& pending);
  void wait_for_copy(CopyId copy, at::cuda::lms::Activity why);
  void stall_until(Time time, Stall cause, CopyId copy = kNoCopy);
  void enqueue(size_t pieces);
  void enqueue_copy(Direction direction, CopyId copy, size_t waits);
  void tell(const at::cuda::lms::Copy& copy);
  Time end_of(const CUevent_st& event);
  void collect_host();

  const Machine machine_;
  const at::cuda::lms::Traits traits_;
  Timeline* const timeline_;
  uintptr_t last_host_ = 0; // memory of the host is a number here
  size_t host_used_ = 0; // bytes
  size_t disk_used_ = 0;
  Time disk_free_ = 0; // since when it has nothing to do
  // The host's memory that copies may still use, in the order of its release.
  std::deque<std::pair<at::cuda::lms::Event, size_t>> host_freed_;
  at::cuda::lms::Pager* pager_ = nullptr;
  at::cuda::lms::Values* values_ = nullptr;
  std::unique_ptr<Memory> memory_;
  mutable Link link_; // who asks makes it run
  std::vector<Interval> computing_;
  std::array<Time, kStallCauses> stalls_{};
  Time now_ = 0; // the compute stream's clock
  Time host_ = 0; // the program's clock
  std::deque<Time> queued_; // ends of the compute stream's last pieces of work
  // By direction: the copies that the last pieces of work belong to.
  std::array<std::deque<CopyId>, kDirections> queued_copies_;
  // What has ended by the host's clock is taken off, and in the clock.
  std::deque<std::pair<uint64_t, Time>> marks_;
  std::deque<std::pair<CopyId, size_t>> leaving_; // copies to the host, bytes
  at::cuda::lms::Clock clock_;
  Time marked_ = kUnknown; // when the last mark was passed
  at::cuda::lms::CopyRates rates_;
};

} // namespace lms_replay
