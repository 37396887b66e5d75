#include <ATen/cuda/detail/LMSDevice.h>

#include <ATen/cuda/detail/LMSAllocator.h>
#include <ATen/cuda/detail/LMSDeviceLock.h>
#include <ATen/cuda/detail/LMSHostMemory.h>
#include <ATen/cuda/detail/LMSSettings.h>
#include <ATen/record_function.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <utility>

// Note [Order of copies and operators]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// No operation here blocks the host (pageable host memory and the `original`
// policy apart). The order is kept on the device:
//  - a page-out copy waits for what is queued so far on every stream that used
//    the storage. Nobody waits for it but the next owner of the memory, see
//    Note [Handing memory over];
//  - a page-in copy waits for the home stream, whose earlier work may still
//    use the memory, for what the memory was handed over with, and for the
//    page-out copy of the same bytes;
//  - each stream waits for it before its first use of the bytes.
// The copies of one direction share a stream, so they are in order.

namespace at::cuda::lms {
namespace {

// Overwritten memory in chaos: bytes that make no number in a floating type.
constexpr int kChaosPattern = 0xFF;

cudaStream_t make_copy_stream() {
  cudaStream_t stream = nullptr;
  C10_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

// What profilers show beside a copy.
std::vector<c10::IValue> bytes_of(const ManagedStorage& record) {
  return {static_cast<int64_t>(record.bytes)};
}

// A copy may be running when a later step fails. The host waits for it, since
// its source and target are about to be let go.
void drain(cudaStream_t stream) {
  if (cudaStreamSynchronize(stream) != cudaSuccess) {
    (void)cudaGetLastError(); // the first error is the one to report
  }
}

} // namespace

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

// What work on the memory outside its home stream is queued so far.
Handover::Events Device::uses_of(const ManagedStorage* record) {
  Handover::Events events;
  c10::cuda::CUDAGuard guard(index_);
  for (cudaStream_t user : record->users) {
    if (user != record->home) {
      events.push_back(record_event(index_, user));
    }
  }
  if (record->arrival && !record->is_used_on(record->home)) {
    events.push_back(record->arrival);
  }
  return events;
}

// Queues the copy to `host` in its place among the streams' work.
Event Device::copy_out(ManagedStorage* record, void* host) {
  RECORD_USER_SCOPE_WITH_INPUTS("lms::page_out", bytes_of(*record));
  c10::cuda::CUDAGuard on_device(index_);
  if (!out_stream_) {
    out_stream_ = make_copy_stream();
  }
  wait_event(out_stream_, record_event(index_, record->home));
  // Users have waited for the arrival; if the home stream has not, it is here.
  for (const Event& use : uses_of(record)) {
    wait_event(out_stream_, use);
  }
  try {
    if (!record->host) {
      Event begin = record_timed_event(index_, out_stream_);
      C10_CUDA_CHECK(cudaMemcpyAsync(
          host,
          record->memory.get(),
          record->bytes,
          cudaMemcpyDeviceToHost,
          out_stream_));
      times_.add(
          Activity::kPageOut,
          std::move(begin),
          record_timed_event(index_, out_stream_));
    }
    if (Settings::get().chaos()) {
      C10_CUDA_CHECK(cudaMemsetAsync(
          record->memory.get(), kChaosPattern, record->bytes, out_stream_));
    }
    return record_event(index_, out_stream_);
  } catch (...) {
    drain(out_stream_);
    throw;
  }
}

// Leaves the bytes on the host; the memory joins leaving_. Returns false, with
// the storage as it was, if they cannot leave.
bool Device::page_out(ManagedStorage* record) {
  const bool is_clean = record->host != nullptr;
  void* host = is_clean ? record->host : host_memory(record->bytes);
  if (!host) {
    last_failure_ = "host memory for paged-out storages is spent";
    return false;
  }
  Handover::Events events;
  try {
    if (is_clean && !Settings::get().chaos()) {
      events = uses_of(record);
    } else {
      events = {copy_out(record, host)};
    }
    if (Settings::get().original()) {
      // The host waits because the original engine did.
      C10_CUDA_CHECK(cudaStreamSynchronize(out_stream_));
    }
  } catch (const c10::Error& error) {
    if (!is_clean) {
      HostMemory::get().free(host, nullptr);
    }
    last_failure_ = error.what_without_backtrace();
    return false;
  }
  const auto bytes = static_cast<int64_t>(record->bytes);
  if (!is_clean) {
    record->host = host;
    record->departure = events.front();
    sent_bytes_ += record->bytes;
    record->departs_at = sent_bytes_;
    copies_out_.push_back({record->departure, sent_bytes_});
    stats_.paged_out.add(record->bytes);
  } else {
    // What reads the host copy must have read it before the copy's memory is
    // used again, also if the storage dies now.
    record->departure = record->arrival;
    stats_.dropped += 1;
    stats_.dropped_bytes += bytes;
  }
  stats_.paged_out_bytes.add(bytes);
  stats_.reclaimed += 1;
  stats_.reclaimed_bytes += bytes;

  Leaving& leaving = leaving_.emplace_back();
  leaving.self = std::prev(leaving_.end());
  leaving.block = record->block;
  leaving.memory = detach_memory(record);
  leaving.events = std::move(events);
  leaving.evictable = true;
  leaving.clean = true;
  leaving.bytes = leaving.block ? leaving.block->size : 0;
  leaving.leaves_at = sent_bytes_;
  occupy(leaving.block, &leaving);
  note_end_of_stay(*record);
  record->users.clear();
  record->arrival = nullptr;
  record->state = ManagedStorage::State::kPagedOut;
  update_page(record);
  return true;
}

// The storage leaves the device, or dies on it.
void Device::note_end_of_stay(const ManagedStorage& record) {
  if (record.waits_for == Activity::kWaitForAhead && record.users.empty()) {
    ++stats_.fetched_in_vain;
  }
}

// Queues the copy of the bytes into `memory`, fresh from the home stream's
// pool, after the events.
Event Device::copy_into(
    void* memory,
    const ManagedStorage* record,
    const Handover::Events& events,
    Activity activity) {
  const bool is_move = activity == Activity::kMove;
  RECORD_USER_SCOPE_WITH_INPUTS(
      is_move ? "lms::move" : "lms::page_in", bytes_of(*record));
  c10::cuda::CUDAGuard on_device(index_);
  cudaStream_t& stream = is_move ? move_stream_ : in_stream_;
  if (!stream) {
    stream = make_copy_stream();
  }
  wait_event(stream, record_event(index_, record->home));
  for (const Event& event : events) {
    wait_event(stream, event);
  }
  try {
    Event begin = record_timed_event(index_, stream);
    C10_CUDA_CHECK(cudaMemcpyAsync(
        memory,
        is_move ? record->memory.get() : record->host,
        record->bytes,
        is_move ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice,
        stream));
    Event end = record_timed_event(index_, stream);
    times_.add(activity, std::move(begin), end);
    return end;
  } catch (...) {
    drain(stream);
    throw;
  }
}

// The storage has died since the copy into `memory` was begun.
void Device::end_dead_arrival(
    ManagedStorage* record,
    c10::DataPtr memory,
    Freed& freed) {
  note_end_of_stay(*record);
  if (record->host) {
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
    record->state = ManagedStorage::State::kArriving;
  }
  complete_page_in(record, /*is_ahead=*/false);
}

// Starts a page-in that no operator needs yet, if there is room for it. The
// storage is pinned. False if there is no room.
bool Device::page_in_ahead(ManagedStorage* record) {
  make_gap(
      {round_up(record->bytes, kMinBlockSize),
       reinterpret_cast<uintptr_t>(record->home)});
  Freed freed(*this);
  {
    Lock lock(*this);
    if (record->dead || record->state != ManagedStorage::State::kPagedOut) {
      return true; // nothing to be done
    }
    if (!make_room_ahead(record, freed)) {
      return false;
    }
    record->state = ManagedStorage::State::kArriving;
  }
  freed.let_go();
  complete_page_in(record, /*is_ahead=*/true);
  return true;
}

bool Device::make_room_ahead(ManagedStorage* record, Freed& freed) {
  Request request{
      round_up(record->bytes, kMinBlockSize),
      reinterpret_cast<uintptr_t>(record->home)};
  request.ahead = record;
  note_progress(request);
  if (!is_crowded(request)) {
    return true;
  }
  const auto victims = policy_->choose_window(layout_, request);
  bool all = !victims.empty();
  for (Page* page : victims) {
    all = evict(page, freed) && all;
  }
  return all;
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
    Handover::Events events = pending;
    // Page-outs end in order, and those of clean pages are page-ins themselves.
    if (record->departs_at > awaited_departure_) {
      events.push_back(record->departure);
    }
    record->arrival =
        copy_into(memory.get(), record, events, Activity::kPageIn);
    awaited_departure_ = std::max(awaited_departure_, record->departs_at);
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
    if (Settings::get().original()) {
      // The host waits because the original engine did.
      C10_CUDA_CHECK(cudaEventSynchronize(record->arrival.get()));
      drop_host_copy(record);
    }
  } catch (...) {
    return_pending(memory.get(), std::move(pending));
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
  leave(ahead);
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
  const Pins pins = enter(accesses, /*stream=*/nullptr, /*adopt=*/false);
  try {
    for (const Access& access : accesses) {
      release(access.storage);
    }
  } catch (...) {
    leave(pins);
    throw;
  }
  leave(pins);
  settle();
}

} // namespace at::cuda::lms
