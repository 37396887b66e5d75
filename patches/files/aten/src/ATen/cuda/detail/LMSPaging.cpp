#include <ATen/cuda/detail/LMSDevice.h>

#include <ATen/cuda/detail/LMSAllocator.h>
#include <ATen/cuda/detail/LMSCaptures.h>
#include <ATen/cuda/detail/LMSDeviceLock.h>
#include <ATen/cuda/detail/LMSHostMemory.h>
#include <ATen/cuda/detail/LMSSettings.h>
#include <c10/cuda/CUDAException.h>

#include <algorithm>
#include <utility>

namespace at::cuda::lms {

void Device::attach_memory(ManagedStorage* record, c10::DataPtr memory) {
  auto [segment, block] =
      layout_.find(reinterpret_cast<uintptr_t>(memory.get()));
  record->block = block;
  occupy(block, record);
  record->memory = std::move(memory);
  record->state = ManagedStorage::State::kResident;
  update_page(record);
  if (record->pins > 0) {
    record->show_address();
  }
}

// The block belongs to the page from now on; to nobody if null.
void Device::occupy(Block* block, Page* page) {
  if (block) {
    page_bytes_ += (page ? block->size : 0) - (block->page ? block->size : 0);
    block->page = page;
  }
}

c10::DataPtr Device::detach_memory(ManagedStorage* record) {
  occupy(record->block, nullptr);
  record->block = nullptr;
  return std::move(record->memory);
}

// Leaves the bytes on the host; the memory joins draining_. Returns false, with
// the storage as it was, if a wait is needed or they cannot be evicted.
bool Device::page_out(ManagedStorage* record, HostMemory::Wait& wait) {
  const bool is_clean = !record->host.empty();
  HostPieces host;
  if (!is_clean) {
    host = host_memory(record->bytes, wait);
    if (wait.is_needed()) {
      return false;
    }
    if (host.empty()) {
      last_failure_ = "host memory for paged-out storages is spent";
      return false;
    }
  }
  Handover::Events events;
  try {
    if (is_clean && !Settings::get().chaos()) {
      events = uses_of(record);
    } else {
      events = {copy_out(record, host)};
    }
    if (traits_.blocks_host) {
      // The host waits because the original engine did.
      synchronize(out_stream_);
    }
  } catch (const c10::Error& error) {
    if (!is_clean) {
      HostMemory::get().free(std::move(host), nullptr);
    }
    last_failure_ = error.what_without_backtrace();
    return false;
  }
  const auto bytes = static_cast<int64_t>(record->bytes);
  if (!is_clean) {
    record->host = std::move(host);
    record->write_back = events.front();
    sent_bytes_ += record->bytes;
    record->written_back_at = sent_bytes_;
    write_backs_.push_back({record->write_back, sent_bytes_});
    stats_.paged_out.add(record->bytes);
  } else {
    // What reads the host copy must have read it before the copy's memory is
    // used again, also if the storage dies now.
    record->write_back = record->arrival;
    stats_.dropped += 1;
    stats_.dropped_bytes += bytes;
  }
  stats_.paged_out_bytes.add(bytes);
  stats_.reclaimed += 1;
  stats_.reclaimed_bytes += bytes;

  Draining& draining = draining_.emplace_back();
  draining.self = std::prev(draining_.end());
  draining.block = record->block;
  draining.memory = detach_memory(record);
  draining.events = std::move(events);
  draining.draining = draining.evictable = true;
  draining.clean = true;
  draining.bytes = draining.block ? draining.block->size : 0;
  draining.drained_at = sent_bytes_;
  occupy(draining.block, &draining);
  note_end_of_stay(*record);
  record->users.clear();
  record->arrival = nullptr;
  record->state = ManagedStorage::State::kPagedOut;
  update_page(record);
  return true;
}

// The storage is evicted, or dies on the device.
void Device::note_end_of_stay(const ManagedStorage& record) {
  if (record.waits_for == Activity::kWaitForAhead && record.users.empty()) {
    ++stats_.fetched_in_vain;
  }
}

// The storage has died since the copy into `memory` was begun.
void Device::end_dead_arrival(
    ManagedStorage* record,
    c10::DataPtr memory,
    Freed& freed) {
  note_end_of_stay(*record);
  if (!record->host.empty()) {
    free_host_copy(record);
  }
  free_after(record->arrival, std::move(memory), freed);
  record->state = ManagedStorage::State::kPagedOut;
}

// The storage is pinned by the caller, so that it stays once it is here.
void Device::page_in(ManagedStorage* record) {
  {
    Lock lock(*this);
    lock.wait(arrived_, [record] {
      return record->state != ManagedStorage::State::kArriving;
    });
    if (record->state == ManagedStorage::State::kResident) {
      return;
    }
    TORCH_CHECK(
        !is_capturing(),
        "A CUDA graph capture touches a tensor whose memory Large Model "
        "Support has moved to the host. Capture inside "
        "`with torch.cuda.lms.pin(...)` of the tensors that the graph uses.");
    record->state = ManagedStorage::State::kArriving;
  }
  complete_page_in(record, /*is_ahead=*/false);
}

// Starts a page-in that no operator needs yet, if there is room for it. The
// storage is pinned. False if there is no room.
bool Device::page_in_ahead(ManagedStorage* record) {
  make_gap(request_for(*record));
  const auto is_wanted = [record] {
    return !record->dead && record->state == ManagedStorage::State::kPagedOut;
  };
  Eviction eviction(/*may_wait=*/true);
  {
    Freed freed(*this);
    Lock lock(*this);
    if (is_wanted() && !choose_ahead(record, eviction)) {
      return false;
    }
    evict(eviction, freed);
  }
  finish(eviction);
  if (eviction.has_failed) {
    return false;
  }
  {
    Lock lock(*this);
    if (!is_wanted()) {
      return true; // nothing to be done
    }
    record->state = ManagedStorage::State::kArriving;
  }
  complete_page_in(record, /*is_ahead=*/true);
  return true;
}

// What has to be evicted for it. False if there is no room.
bool Device::choose_ahead(ManagedStorage* record, Eviction& eviction) {
  Request request = request_for(*record);
  request.ahead = record;
  note_progress(request);
  if (!is_crowded(request)) {
    return true;
  }
  eviction.add(policy_->choose_window(layout_, request));
  return !eviction.pages.empty();
}

// The storage is kArriving.
void Device::complete_page_in(ManagedStorage* record, bool is_ahead) {
  Freed freed(*this);
  c10::DataPtr memory;
  Handover::Events pending;
  try {
    memory = Allocator::get().allocate_for_copy(
        index_, record->bytes, record->home, is_ahead, pending);
    Lock lock(*this);
    note_home(record, memory.get());
    Handover::Events events = pending;
    // Page-outs end in order, and those of clean pages are page-ins themselves.
    if (record->written_back_at > awaited_write_back_) {
      events.push_back(record->write_back);
    }
    record->arrival =
        copy_into(memory.get(), record, events, Activity::kPageIn);
    awaited_write_back_ =
        std::max(awaited_write_back_, record->written_back_at);
    copies_in_.push_back(record->arrival);
    record->arrives_at = arrived_pages_ + copies_in_.size();
    stats_.paged_out_bytes.remove(static_cast<int64_t>(record->bytes));
    stats_.paged_in.add(record->bytes);
    record->waits_for =
        is_ahead ? Activity::kWaitForAhead : Activity::kWaitForDemand;
    if (is_ahead) {
      stats_.fetched_ahead.add(record->bytes);
    }
    if (record->dead) { // since it began to arrive
      end_dead_arrival(record, std::move(memory), freed);
    } else {
      attach_memory(record, std::move(memory));
    }
  } catch (...) {
    return_pending(memory.get(), pending);
    {
      Lock lock(*this);
      record->state = ManagedStorage::State::kPagedOut;
      if (record->dead) {
        stats_.paged_out_bytes.remove(static_cast<int64_t>(record->bytes));
        free_host_copy(record);
      }
    }
    arrived_.notify_all();
    throw;
  }
  arrived_.notify_all();
  if (traits_.blocks_host) {
    // The host waits because the original engine did.
    synchronize(arrival_of(record));
  }
  if (!traits_.keeps_copies) {
    Lock lock(*this);
    drop_host_copy(record);
  }
}

// Starts the page-ins that the policy asked for, in order, and gives the pins
// back. They are a guess, so they may fail for want of room.
void Device::fetch_ahead(const Pins& ahead) noexcept {
  try {
    for (const Pin& pin : ahead) {
      if (!page_in_ahead(pin.record)) {
        break; // what is needed later has to wait too
      }
    }
  } catch (const c10::OutOfMemoryError&) { // NOLINT(bugprone-empty-catch)
    // The room was taken meanwhile. The operators that need the bytes ask
    // again.
  } catch (const std::exception& error) {
    // The operators that need the bytes will ask again, and report.
    TORCH_WARN_ONCE("LMS could not fetch ahead: ", error.what());
  }
  unpin(ahead);
}

void Device::bring_all_back() {
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages;
  {
    Lock lock(*this);
    storages.reserve(records_.size());
    for (ManagedStorage* record : records_) {
      storages.push_back(record->storage);
    }
  }
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> alive;
  Accesses accesses;
  for (const auto& weak : storages) {
    if (auto storage = weak.lock()) {
      accesses.push_back({storage.get(), /*writes=*/false});
      alive.push_back(std::move(storage));
    }
  }
  // All are made resident before the first is let go, so that a failure
  // leaves everything managed.
  const Pins pins = pin(accesses, /*stream=*/nullptr, /*adopt=*/false);
  try {
    for (const Access& access : accesses) {
      release(access.storage);
    }
  } catch (...) {
    unpin(pins);
    throw;
  }
  unpin(pins);
  settle();
}

} // namespace at::cuda::lms
