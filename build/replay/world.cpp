#include "world.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

namespace lms_replay {
namespace {

using namespace at::cuda::lms;

// Pieces of work that a stream holds before a launch blocks, as CUDA has it.
constexpr size_t kStreamDepth = 1024;

Direction direction_of(Copy::Kind kind) {
  return kind == Copy::Kind::kIn ? Direction::kIn
      : kind == Copy::Kind::kOut ? Direction::kOut
                                 : Direction::kAside;
}

Stall stall_for(Activity why) {
  return why == Activity::kWaitForDemand ? Stall::kDemanded
      : why == Activity::kWaitForAhead   ? Stall::kLate
                                         : Stall::kMemory;
}

double microseconds(Time time) {
  return 1e-6 * static_cast<double>(time);
}

} // namespace

VirtualWorld::VirtualWorld(
    const Machine& machine,
    const Traits& traits,
    Timeline* timeline)
    : machine_(machine), traits_(traits), timeline_(timeline), link_(machine) {}

void VirtualWorld::start(Pager& pager, Values& values, size_t capacity) {
  pager_ = &pager;
  values_ = &values;
  memory_ = std::make_unique<Memory>(capacity, pager.books);
  // The one segment has been taken because memory ran short.
  pager.books.has_evicted = true;
}

// --- the program ---

DeviceMemory VirtualWorld::allocate_for_operator(size_t storage, size_t bytes) {
  Events pending;
  DeviceMemory memory = take_with_room(bytes, pending);
  wait(nullptr, pending, Activity::kWaitForMemory);
  if (timeline_) {
    timeline_->took(storage, memory.get(), now_);
  }
  return memory;
}

void VirtualWorld::launch(size_t op, Time duration, size_t made) {
  host_ += machine_.host_per_operator;
  stall_until(host_, Stall::kHost);
  computing_.push_back({now_, now_ + duration});
  if (timeline_) {
    timeline_->ran(op, computing_.back(), made);
  }
  now_ += duration;
  enqueue(duration > 0 ? 1 : 0); // a view launches nothing
}

void VirtualWorld::stall_until(Time time, Stall cause, CopyId copy) {
  if (time > now_) {
    stalls_[static_cast<size_t>(cause)] += time - now_;
    if (timeline_) {
      timeline_->waited(static_cast<size_t>(cause), {now_, time}, copy);
    }
    now_ = time;
  }
  if (traits_.blocks_host) {
    host_ = now_;
  }
}

// A copy is several pieces of work of its stream: it waits for operators and
// for other copies, and begins and ends with an event. The host waits where too
// many have not ended.
void VirtualWorld::enqueue_copy(
    Direction direction,
    CopyId copy,
    size_t waits) {
  constexpr size_t kPieces = 3; // of any copy
  auto& queued = queued_copies_[static_cast<size_t>(direction)];
  queued.insert(queued.end(), kPieces + waits, copy);
  while (queued.size() > kStreamDepth) {
    host_ = std::max(host_, link_.end_of(queued.front()));
    queued.pop_front();
  }
}

// Pieces of work that end now, on the compute stream. The host waits where too
// many have not ended.
void VirtualWorld::enqueue(size_t pieces) {
  for (; pieces > 0; --pieces) {
    queued_.push_back(now_);
    if (queued_.size() > kStreamDepth) {
      host_ = std::max(host_, queued_.front());
      queued_.pop_front();
    }
  }
}

// --- memory ---

DeviceMemory VirtualWorld::allocate(
    const Page& page,
    bool is_ahead,
    Events& pending) {
  return is_ahead ? take(page.bytes, pending)
                  : take_with_room(page.bytes, pending);
}

// Null if no free range is large enough.
DeviceMemory VirtualWorld::take(size_t bytes, Events& pending) {
  const auto address = memory_->allocate(bytes, pending);
  if (!address) {
    return nullptr;
  }
  return DeviceMemory(reinterpret_cast<void*>(*address), FreeMemory{this});
}

// Makes room as the engine's allocator does.
DeviceMemory VirtualWorld::take_with_room(size_t bytes, Events& pending) {
  Request request;
  request.bytes = block_size(bytes);
  request.is_joined = true;
  pager_->relocator.make_gap(request);
  for (int left = 2; left > 0 && pager_->books.map.is_crowded(request);
       --left) {
    pager_->reclaimer.reclaim(request, Scope::kWindow, /*may_wait=*/true);
    pager_->relocator.make_gap(request);
  }
  DeviceMemory memory = take(bytes, pending);
  if (!memory) {
    pager_->reclaimer.reclaim(request, Scope::kAll, /*may_wait=*/true);
    memory = take(bytes, pending);
  }
  if (!memory) {
    throw NoRoom(
        request.bytes,
        request.bytes - std::min(request.bytes, memory_->largest_window()));
  }
  return memory;
}

void VirtualWorld::free(void* memory) noexcept {
  if (timeline_) {
    timeline_->gave_back(memory, now_);
  }
  memory_->release(reinterpret_cast<uintptr_t>(memory));
}

size_t VirtualWorld::block_size_for(size_t bytes) const {
  return block_size(bytes);
}

size_t VirtualWorld::growth_for(size_t bytes) const {
  return bytes;
}

HostPieces VirtualWorld::allocate_on_host(
    size_t bytes,
    HostMemory::Claim claim,
    HostMemory::Wait& wait) {
  collect_host();
  const bool is_spent = machine_.host > 0 &&
      host_used_ + bytes > machine_.host && claim != HostMemory::Claim::kBeyond;
  if (is_spent) {
    if (claim == HostMemory::Claim::kWhole && !host_freed_.empty()) {
      wait.await(host_freed_.front().first);
    }
    return {};
  }
  host_used_ += bytes;
  return {{reinterpret_cast<char*>(++last_host_), bytes}};
}

void VirtualWorld::collect_host() {
  for (auto it = host_freed_.begin(); it != host_freed_.end();) {
    if (has_happened(it->first)) {
      host_used_ -= it->second;
      it = host_freed_.erase(it);
    } else {
      ++it;
    }
  }
}

void VirtualWorld::free_on_host(HostPieces pieces, at::cuda::lms::Event ready) {
  if (timeline_) {
    timeline_->gave_back_host(
        pieces, {now_, ready ? ready->copy : CopyId{kNoCopy}});
  }
  host_freed_.emplace_back(std::move(ready), pieces.front().bytes);
}

bool VirtualWorld::finish(HostMemory::Wait& wait) {
  const bool waits = wait.is_needed() && wait.is_allowed();
  return waits &&
      wait_on_host(std::exchange(wait, HostMemory::Wait(/*is_allowed=*/true))
                       .awaited());
}

// --- the disk ---

namespace {

struct VirtualSpace final : DiskSpace {
  VirtualSpace(size_t& used, size_t bytes) : used(used), bytes(bytes) {
    used += bytes;
  }
  ~VirtualSpace() override {
    used -= bytes;
  }
  size_t& used;
  const size_t bytes;
};

} // namespace

bool VirtualWorld::has_disk() const {
  return machine_.disk > 0;
}

std::shared_ptr<DiskSpace> VirtualWorld::allocate_on_disk(size_t bytes) {
  return disk_used_ + bytes <= machine_.disk
      ? std::make_shared<VirtualSpace>(disk_used_, bytes)
      : nullptr;
}

void VirtualWorld::transfer(
    const std::shared_ptr<DiskTransfer>& queued,
    const at::cuda::lms::Event& after) {
  const bool is_write = queued->kind == DiskTransfer::Kind::kWrite;
  const double bandwidth =
      is_write ? machine_.write_bandwidth : machine_.read_bandwidth;
  const Time takes = std::llround(
      1e12 * static_cast<double>(queued->bytes) / bandwidth); // picoseconds
  disk_free_ = std::max({disk_free_, host_, after ? end_of(*after) : 0});
  disk_free_ += takes;
  if (!is_write) {
    rates_.add_read(queued->bytes, microseconds(takes));
  }
  if (timeline_) {
    timeline_->transferred(*queued, {disk_free_ - takes, disk_free_});
  }
  queued->end =
      std::make_shared<CUevent_st>(CUevent_st{kNoCopy, disk_free_, false});
}

// --- copies ---

at::cuda::lms::Event VirtualWorld::copy(const Copy& copy) {
  const Page& page = copy.page;
  const at::cuda::lms::Event& before =
      copy.kind == Copy::Kind::kIn ? page.write_back : page.arrival;
  CopyIds of_bytes;
  CopyIds of_memory;
  // Where the host waits for a disk, it is not ahead of the device.
  Time earliest = machine_.disk > 0 ? host_ : 0;
  if (before) {
    of_bytes.push_back(before->copy);
  }
  for (const at::cuda::lms::Event& event : copy.after) {
    if (!event) {
      continue;
    }
    if (event->copy == kNoCopy) {
      earliest = std::max(earliest, event->time);
    } else if (event != before) {
      of_memory.push_back(event->copy);
    }
  }
  const Direction direction = direction_of(copy.kind);
  const CopyId id = link_.queue(
      direction,
      copy.is_urgent,
      page.bytes,
      earliest,
      std::move(of_bytes),
      std::move(of_memory));
  tell(copy);
  enqueue_copy(direction, id, copy.after.size());
  if (direction == Direction::kOut) {
    leaving_.emplace_back(id, page.bytes);
  }
  return std::make_shared<CUevent_st>(
      CUevent_st{id, 0, copy.kind == Copy::Kind::kIn});
}

void VirtualWorld::tell(const Copy& copy) {
  if (timeline_) {
    timeline_->copied(
        copy.page,
        direction_of(copy.kind),
        copy.is_ahead,
        copy.memory,
        copy.host);
  }
}

Events VirtualWorld::queued(Stream /*stream*/) noexcept {
  enqueue(1);
  return {std::make_shared<CUevent_st>(CUevent_st{kNoCopy, now_, false})};
}

bool VirtualWorld::may_be_another(Stream /*stream*/) const {
  return false;
}

void VirtualWorld::wait(
    Stream /*stream*/,
    const Events& events,
    std::optional<Activity> counted) {
  enqueue(events.size());
  for (const at::cuda::lms::Event& event : events) {
    if (event && event->copy != kNoCopy) {
      wait_for_copy(event->copy, counted.value_or(Activity::kWaitForMemory));
    }
  }
}

void VirtualWorld::wait_for_copy(CopyId copy, Activity why) {
  const Time end = link_.end_of(copy);
  const Time held_up = link_.waited_for_memory(copy);
  stall_until(std::min(end, now_ + held_up), Stall::kMemory, copy);
  stall_until(end, stall_for(why), copy);
}

// --- what is made again ---

uint32_t VirtualWorld::gain(const Page& page) {
  return values_->gain(page);
}

bool VirtualWorld::give_up(Page& page, bool at_any_cost) {
  return values_->give_up(page, at_any_cost);
}

void VirtualWorld::note_departure(
    const Page& page,
    Departure how,
    size_t room) {
  if (timeline_) {
    timeline_->left(page, how, now_, room);
  }
}

// --- what has happened ---

void VirtualWorld::mark(Stream /*stream*/, uint64_t mark) {
  marks_.emplace_back(mark, now_);
}

Clock VirtualWorld::clock() {
  for (; !marks_.empty() && marks_.front().second <= host_;
       marks_.pop_front()) {
    const auto [mark, time] = marks_.front();
    clock_.mark = mark;
    clock_.mark_us = marked_ == kUnknown ? 0 : microseconds(time - marked_);
    marked_ = time;
  }
  clock_.copy_ns = copy_ns();
  return clock_;
}

// Of the last copies that have ended by now.
double VirtualWorld::copy_ns() {
  link_.run_to(host_);
  for (; !leaving_.empty() && link_.has_ended(leaving_.front().first, host_);
       leaving_.pop_front()) {
    const auto [copy, bytes] = leaving_.front();
    rates_.add_copy(bytes, microseconds(link_.time_of(copy)));
  }
  return rates_.ns_per_byte().value_or(1e9 / machine_.out_bandwidth);
}

Time VirtualWorld::end_of(const CUevent_st& event) {
  return event.copy == kNoCopy ? event.time : link_.end_of(event.copy);
}

bool VirtualWorld::has_happened(const at::cuda::lms::Event& event) const {
  if (!event || event->copy == kNoCopy) {
    return !event || event->time <= host_;
  }
  link_.run_to(host_);
  return link_.has_ended(event->copy, host_);
}

bool VirtualWorld::wait_on_host(const at::cuda::lms::Event& event) noexcept {
  if (event) {
    host_ = std::max(host_, end_of(*event));
    if (traits_.blocks_host && event->copy != kNoCopy) {
      stall_until(
          host_,
          event->is_page_in ? Stall::kDemanded : Stall::kMemory,
          event->copy);
    }
  }
  return true;
}

const Traits& VirtualWorld::traits() const {
  return traits_;
}

// Nothing can go wrong here that is not a fault of the pager's.
void VirtualWorld::warn(
    const char* what,
    const std::exception& error) noexcept {
  std::fprintf(stderr, "%s%s\n", what, error.what());
}

} // namespace lms_replay
