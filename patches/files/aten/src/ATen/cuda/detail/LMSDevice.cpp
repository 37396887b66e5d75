#include <ATen/cuda/detail/LMSDevice.h>

#include <ATen/cuda/detail/LMSAllocator.h>
#include <ATen/cuda/detail/LMSBackward.h>
#include <ATen/cuda/detail/LMSCaptures.h>
#include <ATen/cuda/detail/LMSDeviceLock.h>
#include <ATen/cuda/detail/LMSHostMemory.h>
#include <ATen/cuda/detail/LMSSettings.h>
#include <ATen/cuda/detail/LMSTouched.h>
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

} // namespace

Device::Device(c10::DeviceIndex index)
    : index_(index),
      streams_(index),
      traits_(Settings::get().policy().traits),
      policy_(Settings::get().policy().make()) {}

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

// The record of the storage, made if it has none and LMS can manage it: its
// bytes are a whole allocation of the native allocator, outside private pools.
// Small ones need none if they are used on their home stream only; what other
// streams use has to be known, see Note [Handing memory over], and what graphs
// use.
ManagedStorage* Device::adopt(
    c10::StorageImpl* storage,
    std::optional<cudaStream_t> stream) {
  if (ManagedStorage* record = managed(storage)) {
    return record;
  }
  const c10::DataPtr& memory = storage->_mutable_data_ptr_no_checks();
  if (!Settings::get().enabled() || memory.get() == nullptr ||
      memory.get() != memory.get_context() ||
      memory.get_deleter() != Allocator::get().native().raw_deleter() ||
      storage->lms_access_is_checked() || must_stay_unmanaged(storage)) {
    return nullptr;
  }
  auto [segment, block] =
      layout_.find(reinterpret_cast<uintptr_t>(memory.get()));
  if (!block || block->page || segment->is_private) {
    return nullptr;
  }
  const auto home = reinterpret_cast<cudaStream_t>(segment->stream);
  // Nobody could make the home stream wait before its memory is unmapped.
  if (segment->is_expandable && streams_.is_external(home)) {
    return nullptr;
  }
  if (storage->nbytes() < Settings::get().min_bytes() &&
      stream.value_or(home) == home && !is_capturing()) {
    return nullptr;
  }
  auto* record = new ManagedStorage(*this, storage, home);
  take_over_loan(record);
  record->id = ++last_id_;
  record->block = block;
  occupy(block, record);
  record->index = records_.size();
  records_.push_back(record);
  for (const Pool pool : {kAll, record->pool()}) {
    stats_.managed[pool].add(1);
    stats_.managed_bytes[pool].add(static_cast<int64_t>(record->bytes));
  }
  update_page(record);
  if (Trace* trace = this->trace()) {
    trace->add_alloc(*record);
  }
  // A resize must come to LMS for its memory.
  if (storage->allocator() == &Allocator::get().native()) {
    storage->set_allocator(&Allocator::get());
  }
  return record;
}

Trace* Device::trace() const noexcept {
  Trace* trace = Trace::get();
  return C10_UNLIKELY(trace != nullptr) && index_ == Trace::kDevice ? trace
                                                                    : nullptr;
}

// What the policy sees of the record.
void Device::update_page(ManagedStorage* record) {
  const bool is_here = record->state == ManagedStorage::State::kResident;
  record->resident = record->state != ManagedStorage::State::kPagedOut;
  record->evictable = is_here && record->pins == 0;
  record->clean = is_here && !record->host.empty();
}

void Device::hold(ManagedStorage* record) {
  Event arrival;
  if (!pin_for_good(record, arrival)) {
    try {
      page_in(record);
    } catch (...) {
      Freed freed(*this);
      Lock lock(*this);
      drop_pin(record, freed);
      throw;
    }
    Freed freed(*this);
    Lock lock(*this);
    drop_host_copy(record); // nobody tells when the bytes are written
    if (record->held) { // by another thread meanwhile: its pin is enough
      drop_pin(record, freed);
    }
    record->held = true;
    arrival = record->arrival;
  }
  // The host waits because the address may be used on any stream, at once, by
  // code that LMS does not see; and a captured stream cannot wait.
  synchronize(arrival);
  Lock lock(*this);
  record->arrival = nullptr;
  note_holder(record);
}

// Takes the pin of a storage that is to be held. True if it is held already:
// then that pin is enough, and its bytes come with `arrival`.
bool Device::pin_for_good(ManagedStorage* record, Event& arrival) {
  Lock lock(*this);
  if (record->held) {
    arrival = record->arrival;
    return true;
  }
  add_pin(record);
  return false;
}

// Note [Addresses to compare]
// Programs ask for addresses of storages mostly to tell them apart. What they
// get then is no memory: a range of the storage's size that no other storage
// has, had or will have, aligned as the allocator aligns, so that offsets,
// ends and remainders mean what they mean with addresses. It stays the same
// until the storage is held; from then on its true address is the answer, so
// that it equals what the program uses. The ranges lie where no device and no
// host has memory (addresses of at most 57 bits), so that a use of one is a
// fault at once and never other bytes.
uintptr_t Device::identity(ManagedStorage* record) {
  constexpr uintptr_t kFirst = uintptr_t{1} << 62;
  constexpr size_t kAlignment = 512;
  static std::atomic<uintptr_t> next{kFirst};
  Lock lock(*this);
  if (record->held) {
    return reinterpret_cast<uintptr_t>(record->memory.get());
  }
  if (record->identity == 0) {
    const size_t bytes = (record->bytes + kAlignment - 1) & ~(kAlignment - 1);
    record->identity = next.fetch_add(bytes);
  }
  return record->identity;
}

// The address has been taken: what uses it is most likely the current stream.
// It need not wait for the bytes any more.
void Device::note_holder(ManagedStorage* record) {
  record->is_in_graph = record->is_in_graph || is_capturing();
  streams_.meet_current();
  if (cudaStream_t user = current_stream(index_); !record->is_used_on(user)) {
    record->users.push_back(user);
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
    // The host waits because nobody waits for the copy afterwards.
    synchronize(arrival_of(record));
    Lock lock(*this);
    c10::SmallVector<c10::cuda::CUDAStream, 1> streams(record->recorded);
    occupy(record->block, nullptr);
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

// The copy by which the bytes of a pinned storage came; null if they never
// left.
Event Device::arrival_of(const ManagedStorage* record) {
  Lock lock(*this);
  return record->arrival;
}

void Device::forget(ManagedStorage* record) noexcept {
  if (Settings::get().is_forked_child()) {
    return; // CUDA and its locks belong to the parent process
  }
  Freed freed(*this);
  Lock lock(*this);
  if (record->state == ManagedStorage::State::kResident) {
    note_end_of_stay(*record);
    if (C10_UNLIKELY(may_have_unseen_users(*record))) {
      in_doubt_.push_back(detach_memory(record));
      is_any_in_doubt_.store(true);
    } else {
      freed.recorded = streams_.without_external(record->recorded);
      free_while_used(record, freed);
      freed.recorded_in = &freed.memory.back();
    }
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
  policy_->on_death(record);
  if (Trace* trace = this->trace()) {
    trace->add_free(*record);
  }
  record->dead = true;
  if (record->held) {
    drop_pin(record, freed);
  }
  record->evictable = false;
  crossing_ -= record->may_cross ? 1 : 0;
  // If it is arriving, the thread that copies it in sees to the rest.
  if (record->state == ManagedStorage::State::kPagedOut) {
    stats_.paged_out_bytes.remove(static_cast<int64_t>(record->bytes));
  }
  if (!record->host.empty() &&
      record->state != ManagedStorage::State::kArriving) {
    free_host_copy(record);
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
  if (is_capturing() && is_resident(record)) {
    hold(record); // the stream may use it in the graph
  }
  Lock lock(*this);
  streams_.meet(stream);
  // Bytes that are not here have no users yet: a use of them has to wait for
  // their arrival.
  if (record->state == ManagedStorage::State::kResident) {
    note_use(record, stream.stream());
    streams_.note_work(stream.stream());
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
    if (!record->is_shown()) {
      record->check_access();
    }
  }
}

void Device::check_access_again() {
  Lock lock(*this);
  for (ManagedStorage* record : records_) {
    if (!record->is_shown()) {
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
      if (!record->is_shown()) {
        record->check_access();
      }
    }
  }
  crossing_ = 0;
}

} // namespace at::cuda::lms
