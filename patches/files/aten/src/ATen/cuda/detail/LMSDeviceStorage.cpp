#include <ATen/cuda/detail/LMSDeviceStorage.h>

#include <ATen/cuda/detail/LMSAllocator.h>
#include <ATen/cuda/detail/LMSDevice.h>
#include <ATen/cuda/detail/LMSSettings.h>

namespace at::cuda::lms {
namespace {

constexpr auto kAccessError =
    "This CUDA tensor's memory is managed by Large Model Support (LMS) and may "
    "be in host memory, so its address cannot be taken outside an operator. "
    "Wrap the call in `with torch.cuda.lms.pin(tensor, ...):`, or build the "
    "extension against this wheel's headers. In a thread that was started "
    "before LMS was enabled, call torch.cuda.lms.enable_thread() first.";

// Mark a storage that is not managed any more; no check shows them.
constexpr auto kHeldMark =
    "Large Model Support leaves this CUDA tensor alone: its address was taken.";
constexpr auto kPinnedMark =
    "Large Model Support leaves this CUDA tensor alone while it is pinned.";

ManagedStorage* as_record(c10::lms::Context* context) {
  return static_cast<ManagedStorage*>(context);
}

void unpin_hook(c10::lms::Context* context) {
  auto* record = as_record(context);
  record->device.unpin({{record, /*writes=*/true}});
}

void hold_hook(c10::lms::Context* context) {
  auto* record = as_record(context);
  record->device.hold(record);
}

void forget_hook(void* context) {
  auto* record = as_record(static_cast<c10::lms::Context*>(context));
  record->device.forget(record);
}

bool has_message(c10::StorageImpl* storage, const char* expected) {
  const auto& message = storage->get_extra_meta().custom_data_ptr_error_msg_;
  return message && *message == expected;
}

// Raises the weak count only: the strong count of a storage with a Python
// wrapper may not change under a mutex, see the lock order.
c10::weak_intrusive_ptr<c10::StorageImpl> weak_reference_to(
    c10::StorageImpl* impl) {
  c10::raw::weak_intrusive_ptr::incref(impl);
  return c10::weak_intrusive_ptr<c10::StorageImpl>::reclaim(impl);
}

} // namespace

ManagedStorage::ManagedStorage(
    Device& owner,
    c10::StorageImpl* impl,
    cudaStream_t home_stream)
    : PageEntry(home_stream), device(owner), storage(weak_reference_to(impl)) {
  unpin = unpin_hook;
  hold = hold_hook;
  bytes = impl->nbytes();
  c10::DataPtr& shown = impl->_mutable_data_ptr_no_checks();
  // Its context is its address, which raw_delete frees as its deleter does.
  memory = DeviceMemory(shown.release_context(), FreeMemory{&owner.world()});
  shown = c10::DataPtr(
      nullptr,
      static_cast<c10::lms::Context*>(this),
      forget_hook,
      shown.device());
  impl->get_extra_meta().custom_data_ptr_error_msg_ = kAccessError;
  hide_address();
}

void ManagedStorage::show_address() {
  impl()->_mutable_data_ptr_no_checks().lms_set_data(memory.get());
  impl()->lms_check_access(/*immutable=*/false, /*mutable_=*/false);
}

void ManagedStorage::hide_address() {
  check_access();
  impl()->_mutable_data_ptr_no_checks().lms_set_data(nullptr);
}

void ManagedStorage::check_access() {
  const auto& settings = Settings::get();
  const bool reads =
      !may_cross && !settings.profiled() && !settings.distributed();
  impl()->lms_check_access(/*immutable=*/reads, /*mutable_=*/true);
}

void ManagedStorage::restore_data_ptr() {
  c10::DataPtr& shown = impl()->_mutable_data_ptr_no_checks();
  shown.release_context(); // this record, which the caller now owns
  void* address = memory.release();
  shown = c10::DataPtr(
      address,
      address,
      Allocator::get().native().raw_deleter(),
      shown.device());
  impl()->lms_check_access(/*immutable=*/false, /*mutable_=*/false);
  impl()->get_extra_meta().custom_data_ptr_error_msg_ =
      held ? kHeldMark : kPinnedMark;
}

void ManagedStorage::move_to_orphan() {
  const c10::Device where(c10::DeviceType::CUDA, device.index());
  orphan = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(),
      bytes,
      c10::DataPtr(
          nullptr, static_cast<c10::lms::Context*>(this), forget_hook, where),
      &Allocator::get(),
      /*resizable=*/false);
  storage = weak_reference_to(orphan.get());
  orphan->get_extra_meta().custom_data_ptr_error_msg_ = kAccessError;
  if (is_shown()) {
    show_address();
  } else {
    hide_address();
  }
}

void ManagedStorage::end() {
  if (has_message(impl(), kPinnedMark)) {
    impl()->get_extra_meta().custom_data_ptr_error_msg_.reset();
  }
}

void ManagedStorage::set_home(Stream stream) {
  recorded.push_back(c10::cuda::getStreamFromExternal(home, device.index()));
  home = stream;
}

bool must_stay_unmanaged(c10::StorageImpl* storage) {
  return has_message(storage, kHeldMark) || has_message(storage, kPinnedMark);
}

void disarm_if_stale(c10::StorageImpl* storage) {
  if (C10_UNLIKELY(storage->lms_access_is_checked()) && !managed(storage) &&
      has_message(storage, kAccessError)) {
    storage->lms_check_access(/*immutable=*/false, /*mutable_=*/false);
    storage->get_extra_meta().custom_data_ptr_error_msg_.reset();
  }
}

ManagedStorage* managed(const c10::DataPtr& data_ptr) {
  if (data_ptr.get_deleter() != forget_hook) {
    return nullptr;
  }
  return as_record(static_cast<c10::lms::Context*>(data_ptr.get_context()));
}

ManagedStorage* managed(c10::StorageImpl* storage) {
  return managed(storage->_mutable_data_ptr_no_checks());
}

ManagedStorage* record_of(const c10::Storage& storage) {
  return storage.device_type() == c10::DeviceType::CUDA
      ? managed(storage.unsafeGetStorageImpl())
      : nullptr;
}

} // namespace at::cuda::lms
