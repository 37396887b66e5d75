#include <ATen/cuda/detail/LMSDeviceChecks.h>

#include <ATen/cuda/detail/LMSDevice.h>

namespace at::cuda::lms {
namespace {

void check_unless_shown(ManagedStorage* record) {
  if (!record->is_shown()) {
    record->check_access();
  }
}

} // namespace

void AccessChecks::let_cross(c10::StorageImpl* storage) {
  const Lock lock(device_.mutex());
  if (ManagedStorage* record = managed(storage)) {
    let_cross(record);
  }
}

void AccessChecks::let_cross(ManagedStorage* record) {
  if (!record->may_cross) {
    record->may_cross = true;
    ++crossing_;
    check_unless_shown(record);
  }
}

void AccessChecks::forget(const ManagedStorage& record) {
  crossing_ -= record.may_cross ? 1 : 0;
}

void AccessChecks::forbid_crossing() {
  const Lock lock(device_.mutex());
  if (crossing_ == 0) {
    return;
  }
  for (PageEntry* page : device_.pager().books.pages.all()) {
    if (ManagedStorage* record = managed(page); record->may_cross) {
      record->may_cross = false;
      check_unless_shown(record);
    }
  }
  crossing_ = 0;
}

void AccessChecks::renew() {
  const Lock lock(device_.mutex());
  for (PageEntry* page : device_.pager().books.pages.all()) {
    check_unless_shown(managed(page));
  }
}

} // namespace at::cuda::lms
