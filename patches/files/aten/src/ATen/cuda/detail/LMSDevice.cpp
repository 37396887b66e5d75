#include <ATen/cuda/detail/LMSDevice.h>

#include <ATen/cuda/detail/LMSAllocator.h>
#include <ATen/cuda/detail/LMSBackward.h>
#include <ATen/cuda/detail/LMSDeviceLock.h>
#include <ATen/cuda/detail/LMSHostMemory.h>
#include <ATen/cuda/detail/LMSSettings.h>
#include <c10/cuda/CUDAGuard.h>

#include <array>
#include <atomic>
#include <chrono>
#include <utility>

namespace at::cuda::lms {
namespace {

// Leaked, like the allocator itself: storages may die after static
// destructors have begun.
std::array<std::atomic<Device*>, C10_COMPILE_TIME_MAX_GPUS> devices{};

std::atomic<Device*>& slot_of(c10::DeviceIndex index) {
  return devices.at(static_cast<uint8_t>(index));
}

// What the calling thread has pinned through `enter` and not given back. A pin
// that another thread gives back makes it inexact, which can only make
// wait_for_others wait in vain, for a while, or not at all.
int64_t& pins_of_this_thread(c10::DeviceIndex index) {
  static thread_local std::array<int64_t, C10_COMPILE_TIME_MAX_GPUS> pins{};
  return pins.at(static_cast<uint8_t>(index));
}

constexpr std::chrono::seconds kLongestWait{10};
constexpr int kAttempts = 64; // to pin one operator's storages

} // namespace

Device::Device(c10::DeviceIndex index)
    : index_(index), policy_(make_least_recently_used_policy()) {}

Device* Device::find(c10::DeviceIndex index) {
  return slot_of(index).load(std::memory_order_acquire);
}

Device& Device::get(c10::DeviceIndex index) {
  if (Device* device = find(index)) {
    return *device;
  }
  static std::mutex creation;
  std::lock_guard<std::mutex> lock(creation);
  if (Device* device = find(index)) {
    return *device;
  }
  std::unique_ptr<Device> device(new Device(index));
  // Published first, so that no trace event is missed while it looks around.
  slot_of(index).store(device.get(), std::memory_order_release);
  try {
    device->mirror_allocator();
    device->apply_limit(Settings::get().default_limit());
  } catch (...) {
    slot_of(index).store(nullptr);
    throw;
  }
  if (all().size() > 1) {
    set_uses_several_streams();
  }
  return *device.release();
}

std::vector<Device*> Device::all() {
  std::vector<Device*> all;
  for (auto& slot : devices) {
    if (Device* device = slot.load(std::memory_order_acquire)) {
      all.push_back(device);
    }
  }
  return all;
}

Pins Device::enter(
    const Storages& storages,
    cudaStream_t stream,
    bool adopt_new) {
  if (C10_UNLIKELY(stream != nullptr && !uses_several_streams())) {
    set_uses_several_streams();
  }
  for (int attempt = 1;; ++attempt) {
    try {
      return try_enter(storages, stream, adopt_new);
    } catch (const c10::OutOfMemoryError&) {
      // Two threads may each hold what the other one needs. This one's pins are
      // given back by now, so the other can go on, and it may try again then.
      if (attempt == kAttempts || !others_hold_pins()) {
        throw;
      }
    }
    wait_for_others(generation());
  }
}

Pins Device::try_enter(
    const Storages& storages,
    cudaStream_t stream,
    bool adopt_new) {
  Pins pins;
  Pins absent;
  Pins ahead;
  try {
    {
      Lock lock(*this);
      for (c10::StorageImpl* storage : storages) {
        disarm_if_stale(storage);
        ManagedStorage* record = adopt_new ? adopt(storage) : managed(storage);
        if (!record) {
          continue;
        }
        take_pin(record, pins);
        if (C10_UNLIKELY(is_capturing())) {
          hold_in_capture(record);
        } else if (record->state == ManagedStorage::State::kResident) {
          note_use(record, stream);
        } else {
          absent.push_back(record);
        }
      }
      const c10::SmallVector<Page*, 8> pages(pins.begin(), pins.end());
      std::vector<Page*> fetch;
      policy_->on_operator(pages.data(), pages.size(), fetch);
      for (Page* page : fetch) {
        take_pin(static_cast<ManagedStorage*>(page), ahead);
      }
    }
    for (ManagedStorage* record : absent) {
      page_in(record);
      Lock lock(*this);
      note_use(record, stream);
    }
  } catch (...) {
    ahead.append(pins.begin(), pins.end());
    leave(ahead);
    throw;
  }
  fetch_ahead(ahead);
  return pins;
}

// Pins for an operator: the pin is counted as one that will be given back.
void Device::take_pin(ManagedStorage* record, Pins& pins) {
  pins.push_back(record);
  add_pin(record);
  ++operator_pins_;
  ++pins_of_this_thread(index_);
}

// Starts the page-ins that the policy asked for. They are a guess, so they may
// fail for want of room. Gives the pins back.
void Device::fetch_ahead(const Pins& ahead) {
  try {
    for (ManagedStorage* record : ahead) {
      page_in(record);
    }
  } catch (const c10::OutOfMemoryError&) { // NOLINT(bugprone-empty-catch)
    // The operators that need the bytes will ask again.
  }
  if (!ahead.empty()) {
    leave(ahead);
  }
}

void Device::leave(
    const Pins& pins,
    const Storages& fresh,
    cudaStream_t stream) noexcept {
  const bool are_gradients = !fresh.empty() && makes_gradients();
  Freed freed(*this);
  Lock lock(*this);
  for (ManagedStorage* record : pins) {
    drop_pin(record, freed);
  }
  if (!pins.empty()) {
    operator_pins_ -= static_cast<int64_t>(pins.size());
    pins_of_this_thread(index_) -= static_cast<int64_t>(pins.size());
    note_change();
  }
  for (c10::StorageImpl* storage : fresh) {
    disarm_if_stale(storage);
    const bool is_new = !managed(storage);
    ManagedStorage* record = adopt(storage);
    if (record && record->pins == 0) {
      note_use(record, stream);
    }
    if (record && is_new && are_gradients) {
      let_cross(record);
    }
  }
}

void Device::note_change() noexcept {
  ++generation_;
  if (waiters_.load() > 0) {
    changed_.notify_all();
  }
}

bool Device::others_hold_pins() {
  Lock lock(*this);
  return letting_go_.load() > 0 || operator_pins_ > pins_of_this_thread(index_);
}

bool Device::wait_for_others(uint64_t seen) {
  ++waiters_;
  bool changed = false;
  {
    Lock lock(*this);
    const int64_t own = pins_of_this_thread(index_);
    waiting_pins_ += own;
    changed_.notify_all(); // the others may wait for this thread's pins
    // The host waits because the memory it needs is in use by operators that
    // other threads are launching right now. It looks every so often, since a
    // change may be announced without the mutex. With no pins of its own it
    // waits for threads that wait too: the first of them to give up moves on.
    const auto give_up = std::chrono::steady_clock::now() + kLongestWait;
    auto is_hopeful = [&] {
      const int64_t hopeless = own == 0 ? 0 : waiting_pins_;
      return letting_go_.load() > 0 || operator_pins_ > hopeless;
    };
    while (!(changed = generation() != seen) && is_hopeful() &&
           std::chrono::steady_clock::now() < give_up) {
      lock.wait_for(changed_, std::chrono::milliseconds{1});
    }
    waiting_pins_ -= own;
  }
  --waiters_;
  return changed;
}

// The record of the storage, made if it has none and LMS can manage it: its
// bytes are a whole allocation of the native allocator, outside private pools.
ManagedStorage* Device::adopt(c10::StorageImpl* storage) {
  if (ManagedStorage* record = managed(storage)) {
    return record;
  }
  const c10::DataPtr& memory = storage->_mutable_data_ptr_no_checks();
  if (!Settings::get().enabled() || memory.get() == nullptr ||
      memory.get() != memory.get_context() ||
      memory.get_deleter() != Allocator::get().native().raw_deleter() ||
      storage->lms_access_is_checked() || was_held(storage) ||
      storage->nbytes() < Settings::get().min_bytes()) {
    return nullptr;
  }
  auto [segment, block] =
      layout_.find(reinterpret_cast<uintptr_t>(memory.get()));
  if (!block || block->page || segment->is_private) {
    return nullptr;
  }
  auto* record = new ManagedStorage(
      *this, storage, reinterpret_cast<cudaStream_t>(segment->stream));
  record->block = block;
  block->page = record;
  record->index = records_.size();
  records_.push_back(record);
  for (const Pool pool : {kAll, record->pool()}) {
    stats_.managed[pool].add(1);
    stats_.managed_bytes[pool].add(static_cast<int64_t>(record->bytes));
  }
  set_evictable(record);
  // A resize must come to LMS for its memory.
  if (storage->allocator() == &Allocator::get().native()) {
    storage->set_allocator(&Allocator::get());
  }
  return record;
}

void Device::add_pin(ManagedStorage* record) {
  if (record->pins++ > 0) {
    return;
  }
  for (const Pool pool : {kAll, record->pool()}) {
    stats_.pinned[pool].add(1);
    stats_.pinned_bytes[pool].add(static_cast<int64_t>(record->bytes));
  }
  set_evictable(record);
  if (record->state == ManagedStorage::State::kResident) {
    record->show_address();
  }
}

void Device::drop_pin(ManagedStorage* record, Freed& freed) noexcept {
  if (--record->pins > 0) {
    return;
  }
  for (const Pool pool : {kAll, record->pool()}) {
    stats_.pinned[pool].remove(1);
    stats_.pinned_bytes[pool].remove(static_cast<int64_t>(record->bytes));
  }
  if (record->dead) {
    freed.records.emplace_back(record);
    return;
  }
  record->hide_address();
  set_evictable(record);
}

void Device::set_evictable(ManagedStorage* record) {
  record->evictable =
      record->pins == 0 && record->state == ManagedStorage::State::kResident;
}

void Device::note_use(ManagedStorage* record, cudaStream_t stream) {
  if (stream == record->home) {
    return; // waited for the arrival already
  }
  for (cudaStream_t user : record->users) {
    if (user == stream) {
      return;
    }
  }
  c10::cuda::CUDAGuard guard(index_);
  wait_event(stream, record->arrival);
  record->users.push_back(stream);
}

// Nothing waits for the arrival: a capture begins after the device is idle.
void Device::hold_in_capture(ManagedStorage* record) {
  TORCH_CHECK(
      record->state == ManagedStorage::State::kResident,
      "A CUDA graph capture touches a tensor whose memory Large Model Support "
      "has moved to the host. Capture inside `with torch.cuda.lms.pin(...)` "
      "of the tensors that the graph uses.");
  if (!record->held) {
    add_pin(record);
    record->held = true;
  }
}

void Device::hold(ManagedStorage* record) {
  Freed freed(*this);
  {
    Lock lock(*this);
    if (record->held) {
      return;
    }
    add_pin(record);
  }
  try {
    page_in(record);
  } catch (...) {
    Lock lock(*this);
    drop_pin(record, freed);
    throw;
  }
  Lock lock(*this);
  if (record->held) { // by another thread meanwhile: its pin is enough
    drop_pin(record, freed);
  }
  record->held = true;
  if (record->arrival) {
    // The host waits because the address may be used on any stream, at once,
    // by code that LMS does not see.
    C10_CUDA_CHECK(cudaEventSynchronize(record->arrival.get()));
  }
}

void Device::release(c10::StorageImpl* storage) {
  ManagedStorage* record = managed(storage);
  if (!record) {
    return;
  }
  {
    Lock lock(*this);
    add_pin(record);
  }
  Freed freed(*this);
  try {
    page_in(record);
    Lock lock(*this);
    if (record->arrival) {
      // The host waits because nobody waits for the copy afterwards.
      C10_CUDA_CHECK(cudaEventSynchronize(record->arrival.get()));
    }
    c10::SmallVector<c10::cuda::CUDAStream, 1> streams(record->recorded);
    if (record->block) {
      record->block->page = nullptr;
    }
    record->restore_data_ptr();
    remove(record, freed);
    drop_pin(record, freed);
    freed.recorded_in = &storage->_mutable_data_ptr_no_checks();
    freed.recorded = std::move(streams);
  } catch (...) {
    Lock lock(*this);
    drop_pin(record, freed);
    throw;
  }
}

void Device::forget(ManagedStorage* record) noexcept {
  if (Settings::get().is_forked_child()) {
    return; // CUDA and its locks belong to the parent process
  }
  Freed freed(*this);
  Lock lock(*this);
  if (record->state == ManagedStorage::State::kResident) {
    freed.recorded = record->recorded;
    freed.add(detach_memory(record));
    freed.recorded_in = &freed.memory.back();
  }
  const bool is_pinned = record->pins > 0;
  remove(record, freed);
  if (!is_pinned) {
    freed.records.emplace_back(record);
  }
}

// Takes the record off the books: its owner has let it go. If it is pinned, the
// last pin frees it.
void Device::remove(ManagedStorage* record, Freed& freed) noexcept {
  record->dead = true;
  if (record->held) {
    drop_pin(record, freed);
  }
  record->evictable = false;
  crossing_ -= record->may_cross ? 1 : 0;
  if (record->host) {
    HostMemory::get().free(record->host, std::move(record->departure));
    record->host = nullptr;
    stats_.paged_out_bytes.remove(static_cast<int64_t>(record->bytes));
  }
  records_.back()->index = record->index;
  records_[record->index] = records_.back();
  records_.pop_back();
  for (const Pool pool : {kAll, record->pool()}) {
    stats_.managed[pool].remove(1);
    stats_.managed_bytes[pool].remove(static_cast<int64_t>(record->bytes));
  }
}

void Device::record_stream(
    ManagedStorage* record,
    c10::cuda::CUDAStream stream) {
  Lock lock(*this);
  // Bytes that are not here have no users yet: a use of them has to wait for
  // their arrival.
  if (record->state == ManagedStorage::State::kResident) {
    note_use(record, stream.stream());
  }
  record->recorded.push_back(stream);
}

bool Device::is_resident(ManagedStorage* record) {
  Lock lock(*this);
  return record->state == ManagedStorage::State::kResident;
}

void Device::let_cross(c10::StorageImpl* storage) {
  Lock lock(*this);
  if (ManagedStorage* record = managed(storage)) {
    let_cross(record);
  }
}

void Device::let_cross(ManagedStorage* record) {
  if (!record->may_cross) {
    record->may_cross = true;
    ++crossing_;
    if (record->pins == 0) {
      record->check_access();
    }
  }
}

void Device::check_gradients_again() {
  Lock lock(*this);
  if (crossing_ == 0) {
    return;
  }
  for (ManagedStorage* record : records_) {
    if (record->may_cross) {
      record->may_cross = false;
      if (record->pins == 0) {
        record->check_access();
      }
    }
  }
  crossing_ = 0;
}

} // namespace at::cuda::lms
