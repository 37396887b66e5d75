#include <ATen/cuda/detail/LMSDevice.h>

#include <ATen/cuda/detail/LMSAllocator.h>
#include <ATen/cuda/detail/LMSCaptures.h>
#include <ATen/cuda/detail/LMSDeviceLock.h>
#include <ATen/cuda/detail/LMSHostMemory.h>
#include <ATen/cuda/detail/LMSSettings.h>
#include <ATen/cuda/detail/LMSSpace.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <utility>
#include <vector>

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
// While it is moved a storage is kArriving, as for a page-in: who needs it
// waits for the few calls that this takes. A pin keeps the record alive.

namespace at::cuda::lms {

// Makes one gap for the request out of several, if that can be done without
// paging anything out. Without the mutex.
void Device::make_gap(const Request& wanted) noexcept {
  // While nothing has had to be evicted, there is nothing to be gained.
  if (!has_evicted_.load(std::memory_order_relaxed) || is_capturing() ||
      !traits_.joins_memory || Settings::get().chaos()) {
    return;
  }
  Request request = wanted;
  Pins moving;
  Clearing clearing;
  try {
    {
      Freed freed(*this);
      Lock lock(*this);
      if (!is_crowded(request)) {
        return;
      }
      note_progress(request);
      release_drained_memory(freed);
    }
    {
      Freed freed(*this);
      Lock lock(*this);
      if (!is_crowded(request)) {
        return;
      }
      clearing = cheapest_clearing(layout_, request, &clearing_hand_);
      HostMemory::Wait unneeded(/*is_allowed=*/false);
      for (Page* page : clearing.pages) {
        if (page->draining) {
          evict(page, unneeded, freed); // its bytes have drained
          continue;
        }
        auto* record = static_cast<ManagedStorage*>(page);
        record->state = ManagedStorage::State::kArriving;
        take_pin(record, /*writes=*/false, moving);
      }
    }
    move_out_of(clearing, moving, request.kept);
  } catch (const std::exception& error) {
    // What is where it was can be paged out instead.
    TORCH_WARN_ONCE("LMS could not move storages aside: ", error.what());
  }
  settle_in_place(moving);
}

// True if there is no gap for the request and the allocator may not grow.
bool Device::is_crowded(const Request& request) const {
  return !layout_.has_gap(request.bytes, request.stream) &&
      !may_grow(request.bytes);
}

// To be asked first: an allocator that looks in vain gives all that it has
// cached back to the driver, and tells who watches for errors.
bool Device::has_room_for(const ManagedStorage& record) {
  Lock lock(*this);
  return !is_crowded(request_for(record));
}

// Frees the memory that nothing read from when progress was last noted.
void Device::release_drained_memory(Freed& freed) {
  const auto is_drained = [this](const Draining& draining) {
    return draining.drained_at <= drained_bytes_ &&
        std::all_of(
               draining.events.begin(), draining.events.end(), has_happened);
  };
  while (!draining_.empty() && is_drained(draining_.front())) {
    hand_over(draining_.front(), freed);
    draining_.pop_front();
  }
}

// Moves the storages, largest first, until one does not find another place.
void Device::move_out_of(
    const Clearing& clearing,
    const Pins& moving,
    const Extent& kept) {
  std::vector<c10::DataPtr> inside; // memory that is no better than before
  const auto allocate = [&](const ManagedStorage& record,
                            Handover::Events& pending) -> c10::DataPtr {
    while (has_room_for(record)) {
      pending.clear();
      c10::DataPtr memory;
      try {
        memory = Allocator::get().allocate_for_copy(
            index_, record.bytes, record.home, true, pending);
      } catch (const c10::OutOfMemoryError&) {
        return {};
      }
      const auto address = reinterpret_cast<uintptr_t>(memory.get());
      if (!clearing.extent.has(address) && !kept.has(address)) {
        return memory;
      }
      return_pending(memory.get(), pending);
      inside.push_back(std::move(memory));
    }
    return {};
  };
  for (const Pin& pin : moving) {
    Handover::Events pending;
    c10::DataPtr memory = allocate(*pin.record, pending);
    if (!memory && clearing.is_tight) {
      Request request = request_for(*pin.record);
      request.kept = clearing.extent;
      make_gap(request);
      memory = allocate(*pin.record, pending);
    }
    if (!memory) {
      return;
    }
    move(pin.record, std::move(memory), std::move(pending));
  }
}

void Device::move(
    ManagedStorage* record,
    c10::DataPtr memory,
    Handover::Events pending) {
  Freed freed(*this);
  try {
    Lock lock(*this);
    Handover::Events uses = uses_of(record);
    uses.append(pending.begin(), pending.end());
    record->arrival = copy_into(memory.get(), record, uses, Activity::kMove);
    stats_.moved.add(record->bytes);
    free_after(record->arrival, detach_memory(record), freed);
    if (record->dead) { // since the move began
      end_dead_arrival(record, std::move(memory), freed);
      return;
    }
    if (!record->users.empty()) {
      record->users.clear(); // each waits for the bytes again
      record->waits_for = Activity::kWaitForMemory;
    }
    attach_memory(record, std::move(memory));
  } catch (...) {
    return_pending(memory.get(), pending);
    throw;
  }
}

// Ends the move, successful or not.
void Device::settle_in_place(const Pins& moving) noexcept {
  if (moving.empty()) {
    return;
  }
  Freed freed(*this);
  {
    Lock lock(*this);
    for (const Pin& pin : moving) {
      ManagedStorage* record = pin.record;
      if (record->state != ManagedStorage::State::kArriving) {
        continue;
      }
      record->state = ManagedStorage::State::kResident; // it did not move
      if (record->dead) {
        if (!record->host.empty()) {
          free_host_copy(record);
        }
        free_while_used(record, freed);
      } else {
        update_page(record);
        if (record->pins > 1) {
          record->show_address();
        }
      }
    }
    give_back(moving, freed);
  }
  arrived_.notify_all();
}

} // namespace at::cuda::lms
