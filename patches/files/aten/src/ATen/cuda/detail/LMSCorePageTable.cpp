#include <ATen/cuda/detail/LMSCorePageTable.h>

namespace at::cuda::lms {

void PageEntry::add_user(Stream stream) {
  if (stream == home) {
    is_used_at_home = true;
  } else {
    other_users.push_back(stream);
  }
}

void PageEntry::clear_users() {
  is_used_at_home = false;
  other_users.clear();
}

void PageEntry::update() {
  const bool is_here = state == State::kResident;
  resident = is_here || state == State::kArriving;
  evictable = is_here && pins == 0;
  clean = is_here && (!host.empty() || disk);
  dropped = state == State::kDropped;
}

Request request_for(const PageEntry& page, const World& world) {
  Request request;
  request.bytes = world.block_size_for(page.bytes);
  request.stream = reinterpret_cast<uintptr_t>(page.home);
  return request;
}

void PageTable::add(PageEntry* page) {
  page->id = ++last_id_;
  page->index = pages_.size();
  pages_.push_back(page);
  for (const Pool pool : {kAll, page->pool()}) {
    stats_.managed[pool].add(1);
    stats_.managed_bytes[pool].add(static_cast<int64_t>(page->bytes));
  }
}

void PageTable::remove(PageEntry* page) {
  pages_.back()->index = page->index;
  pages_[page->index] = pages_.back();
  pages_.pop_back();
  for (const Pool pool : {kAll, page->pool()}) {
    stats_.managed[pool].remove(1);
    stats_.managed_bytes[pool].remove(static_cast<int64_t>(page->bytes));
  }
}

} // namespace at::cuda::lms
