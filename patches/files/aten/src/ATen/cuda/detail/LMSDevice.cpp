#include <ATen/cuda/detail/LMSDevice.h>

#include <ATen/cuda/detail/LMSAllocator.h>
#include <ATen/cuda/detail/LMSOperatorBackward.h>
#include <ATen/cuda/detail/LMSCudaCaptures.h>
#include <ATen/cuda/detail/LMSSettings.h>
#include <ATen/cuda/detail/LMSOperatorTouched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

namespace at::cuda::lms {
namespace {

// Leaked, like the allocator itself: storages may die after static
// destructors have begun.
std::array<std::atomic<Device*>, C10_COMPILE_TIME_MAX_GPUS> devices{};

std::atomic<Device*>& slot_of(c10::DeviceIndex index) {
  return devices.at(static_cast<uint8_t>(index));
}

// The streams may still use the memory at the address when it is freed.
void tell_of_streams(
    c10::SmallVector<c10::cuda::CUDAStream, 1> streams,
    void* address,
    Freed& freed) {
  if (streams.empty()) {
    return;
  }
  freed.before([address, streams = std::move(streams)] {
    auto& native = Allocator::get().native();
    c10::DataPtr memory(
        address, address, native.raw_deleter(), streams[0].device());
    for (const auto& stream : streams) {
      native.recordStream(memory, stream);
    }
    (void)memory.release_context(); // somebody else's
  });
}

} // namespace

Device::Device(c10::DeviceIndex index)
    : index_(index),
      world_(index, Settings::get().policy()),
      pager_(world_, index, Settings::get().policy().make()) {}

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
    device->mirror_.start();
    device->limit_.apply(Settings::get().default_limit());
  } catch (...) {
    slot_of(index).store(nullptr);
    throw;
  }
  if (all().size() > 1) {
    set_uses_several_streams();
  }
  if (Settings::get().active()) {
    device->sharing_.start();
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
      map().layout().find(reinterpret_cast<uintptr_t>(memory.get()));
  if (!block || block->page || segment->is_private) {
    return nullptr;
  }
  const auto home = reinterpret_cast<cudaStream_t>(segment->stream);
  // Nobody could make the home stream wait before its memory is unmapped.
  if (segment->is_expandable && world_.streams().is_external(home)) {
    return nullptr;
  }
  if (storage->nbytes() < Settings::get().min_bytes() &&
      stream.value_or(home) == home && !is_capturing()) {
    return nullptr;
  }
  auto* record = new ManagedStorage(*this, storage, home);
  loans_.take_over(record);
  pager_.residence.begin(record, block);
  if (Trace* trace = Trace::of(index_)) {
    trace->add_alloc(*record);
  }
  // A resize must come to LMS for its memory.
  if (storage->allocator() == &Allocator::get().native()) {
    storage->set_allocator(&Allocator::get());
  }
  return record;
}

void Device::hold(ManagedStorage* record) {
  Event arrival;
  Event write_back;
  if (!pin_for_good(record, arrival)) {
    try {
      page_in(record);
    } catch (...) {
      Freed freed(pager_.books.contention);
      const Lock lock(mutex());
      pager_.residence.drop_pin(record, freed);
      throw;
    }
    watch_no_more(record);
    Freed freed(pager_.books.contention);
    const Lock lock(mutex());
    write_back = record->write_back;
    pager_.books.drop_copies(record);
    if (record->held) { // by another thread meanwhile: its pin is enough
      pager_.residence.drop_pin(record, freed);
    }
    record->held = true;
    arrival = record->arrival;
  }
  // The host waits because the address may be used on any stream, at once, by
  // code that LMS does not see; and a captured stream cannot wait.
  synchronize(arrival);
  synchronize(write_back);
  const Lock lock(mutex());
  record->arrival = nullptr;
  note_holder(record);
}

// From now on nobody tells when the bytes of the storage, which is pinned, are
// written.
void Device::watch_no_more(ManagedStorage* record) {
  {
    const Lock lock(mutex());
    record->is_watched = false;
  }
  note_writes({{record, /*writes=*/true}}, /*is_inside=*/false);
}

// Takes the pin of a storage that is to be held. True if it is held already:
// then that pin is enough, and its bytes come with `arrival`.
bool Device::pin_for_good(ManagedStorage* record, Event& arrival) {
  const Lock lock(mutex());
  if (record->held) {
    arrival = record->arrival;
    return true;
  }
  pager_.residence.add_pin(record);
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
  const Lock lock(mutex());
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
  world_.streams().meet_current();
  if (cudaStream_t user = current_stream(index_); !record->is_used_on(user)) {
    record->add_user(user);
  }
}

void Device::release(c10::StorageImpl* storage) {
  ManagedStorage* record = managed(storage);
  if (!record) {
    return;
  }
  {
    const Lock lock(mutex());
    pager_.residence.add_pin(record);
  }
  Freed freed(pager_.books.contention);
  try {
    page_in(record);
    // The host waits because nobody waits for the copy afterwards.
    synchronize(arrival_of(record));
    watch_no_more(record);
    const Lock lock(mutex());
    map().occupy(record->block, nullptr);
    tell_of_streams(record->recorded, record->memory.get(), freed);
    record->restore_data_ptr();
    remove(record, freed);
    pager_.residence.drop_pin(record, freed);
  } catch (...) {
    const Lock lock(mutex());
    pager_.residence.drop_pin(record, freed);
    throw;
  }
}

Event Device::arrival_of(const ManagedStorage* record) {
  const Lock lock(mutex());
  return record->arrival;
}

void Device::forget(ManagedStorage* record) noexcept {
  if (Settings::get().is_forked_child()) {
    return; // CUDA and its locks belong to the parent process
  }
  {
    Freed freed(pager_.books.contention);
    const Lock lock(mutex());
    if (recipes_.may_end(record)) {
      take_memory_of(record, freed);
      remove(record, freed);
    }
  }
  recipes_.free_orphans();
}

// With the mutex, of a storage that dies.
void Device::take_memory_of(ManagedStorage* record, Freed& freed) noexcept {
  if (record->state != ManagedStorage::State::kResident) {
    return;
  }
  if (C10_UNLIKELY(may_have_unseen_users(*record))) {
    room_.keep_in_doubt(pager_.residence.detach(record));
    return;
  }
  tell_of_streams(
      world_.streams().without_external(record->recorded),
      pager_.residence.free_while_used(record, freed),
      freed);
}

// Whether work that LMS has not seen may use a storage that dies, on a stream
// that cannot be asked. See Note [External streams] and Note [CUDA graphs].
bool Device::may_have_unseen_users(const ManagedStorage& record) const {
  const auto is_out_of_reach = [this](cudaStream_t user) {
    return world_.streams().is_out_of_reach(user);
  };
  return record.held &&
      (record.is_in_graph || is_out_of_reach(record.home) ||
       std::any_of(
           record.other_users.begin(),
           record.other_users.end(),
           is_out_of_reach));
}

// Takes the record off the books: its owner has let it go. If it is pinned, the
// last pin frees it.
void Device::remove(ManagedStorage* record, Freed& freed) noexcept {
  pager_.books.policy->on_death(
      record, static_cast<uint8_t>(recipes_.gain(*record)));
  recipes_.forget(*record);
  if (Trace* trace = Trace::of(index_)) {
    trace->add_free(*record);
  }
  checks_.forget(*record);
  const bool is_held = record->held;
  pager_.residence.end(record, freed);
  if (is_held) {
    pager_.residence.drop_pin(record, freed);
  }
}

void Device::record_stream(
    ManagedStorage* record,
    c10::cuda::CUDAStream stream) {
  if (is_capturing() && is_resident(record)) {
    hold(record); // the stream may use it in the graph
  }
  const Lock lock(mutex());
  world_.streams().meet(stream);
  // Bytes that are not here have no users yet: a use of them has to wait for
  // their arrival.
  if (record->state == ManagedStorage::State::kResident) {
    pager_.residence.note_use(record, stream.stream());
    world_.streams().note_work(stream.stream());
  }
  record->recorded.push_back(stream);
}

bool Device::is_resident(ManagedStorage* record) {
  const Lock lock(mutex());
  return record->state == ManagedStorage::State::kResident;
}

void Device::bring_all_back() {
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages;
  {
    const Lock lock(mutex());
    storages.reserve(pager_.books.pages.all().size());
    for (PageEntry* page : pager_.books.pages.all()) {
      if (!managed(page)->orphan) { // those die with what is made from them
        storages.push_back(managed(page)->storage);
      }
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
  recipes_.free_orphans();
  room_.settle();
}

} // namespace at::cuda::lms
