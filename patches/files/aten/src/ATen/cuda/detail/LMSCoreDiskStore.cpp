#include <ATen/cuda/detail/LMSCoreDiskStore.h>

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

namespace at::cuda::lms {
namespace {

// Smaller pages stay in the host's memory: to start a transfer takes as long as
// a fast disk takes for this.
constexpr size_t kLeastOnDisk = kSmallSize;
// Bytes that are being read, or written, while nothing more is begun ahead:
// enough for a fast disk until the next operators are launched.
constexpr size_t kMostInTransfer = size_t{512} << 20;
// The part of the host's memory that can be given up at once.
constexpr size_t kSpareShare = 16;
// Nothing has ended: pages are looked at after so many operators all the same.
constexpr size_t kOperatorsPerSurvey = 16;

// Later than all that is foreseen, in the order of last use.
constexpr uint64_t kUnforeseen = uint64_t{1} << 63;

constexpr HostNeed kNeededNow{false, 0};
constexpr HostNeed kNeededNever{true, Page::kNever};

bool is_foreseen(const PageEntry& page) {
  return page.hint.on_host || page.needed_at() < kUnforeseen;
}

// Of a page that is away from the device, or will be.
HostNeed need_of(const PageEntry& page) {
  return {
      !page.hint.on_host,
      page.needed_at() < kUnforeseen ? page.needed_at()
                                     : Page::kNever - 1 - page.last_use};
}

// Of the host's copy of it.
HostNeed host_need_of(const PageEntry& page) {
  return page.state == PageEntry::State::kResident ? kNeededNever
                                                   : need_of(page);
}

// Its only copy in memory is on the host, and a hint wants it there.
bool is_kept_from_disk(const PageEntry& page) {
  return page.hint.on_host && page.state == PageEntry::State::kPagedOut;
}

// Bytes that are to be had at once.
size_t spare_of(size_t on_host) {
  return std::min(on_host / kSpareShare, kMostInTransfer);
}

bool is_needed_sooner(const PageEntry& page, const PageEntry& than) {
  return std::pair(host_need_of(page), page.id) <
      std::pair(host_need_of(than), than.id);
}

} // namespace

// --- what there is ---

bool DiskStore::IsNeededSooner::operator()(
    const PageEntry* page,
    const PageEntry* than) const {
  return is_needed_sooner(*page, *than);
}

bool DiskStore::IsNeededLater::operator()(
    const PageEntry* page,
    const PageEntry* than) const {
  return is_needed_sooner(*than, *page);
}

DiskStore::Survey DiskStore::survey() const {
  Survey found;
  for (PageEntry* page : pages_.all()) {
    const bool is_away = page->state == PageEntry::State::kPagedOut;
    const bool is_here = page->state == PageEntry::State::kResident;
    if (!page->host.empty()) {
      found.on_host_bytes += page->bytes;
    }
    if (page->transfer || page->bytes < kLeastOnDisk || !(is_away || is_here) ||
        (is_away && page->pins > 0)) { // it is about to come
      continue;
    }
    if (page->disk && page->host.empty() && is_away) {
      found.on_disk.push(page);
    } else if (page->disk && !page->host.empty()) {
      found.on_both.push(page);
      found.spare += page->bytes;
    } else if (!page->host.empty() && is_away) {
      found.on_host.push(page);
    }
  }
  return found;
}

// --- transfers ---

// False if there is no room on disk, or no disk.
bool DiskStore::start(
    DiskTransfer::Kind kind,
    PageEntry* page,
    std::shared_ptr<DiskSpace> space,
    HostPieces host) {
  auto transfer = std::make_shared<DiskTransfer>();
  transfer->kind = kind;
  transfer->bytes = page->bytes;
  transfer->host = std::move(host);
  transfer->space = std::move(space);
  transfer->page = page;
  try {
    const bool is_write = kind == DiskTransfer::Kind::kWrite;
    world_.transfer(transfer, is_write ? page->write_back : nullptr);
  } catch (const std::exception& error) {
    failure_ = world_.reason_of(error);
    return false;
  }
  page->transfer = transfer;
  const bool is_read = kind == DiskTransfer::Kind::kRead;
  (is_read ? reading_ : writing_) += page->bytes;
  (is_read ? stats_.read_from_disk : stats_.written_to_disk).add(page->bytes);
  (is_read ? reads_ : writes_).push_back(std::move(transfer));
  return true;
}

bool DiskStore::write(PageEntry* page) {
  auto space = world_.allocate_on_disk(page->bytes);
  return space &&
      start(DiskTransfer::Kind::kWrite, page, std::move(space), page->host);
}

bool DiskStore::read(PageEntry* page, HostPieces host) {
  if (start(DiskTransfer::Kind::kRead, page, page->disk, host)) {
    return true;
  }
  world_.free_on_host(std::move(host), nullptr);
  return false;
}

// True if any has ended.
bool DiskStore::collect() {
  const bool has_read = collect(reads_);
  return collect(writes_) || has_read;
}

bool DiskStore::collect(Transfers& transfers) {
  bool any = false;
  while (!transfers.empty() && world_.has_happened(transfers.front()->end)) {
    finish(*transfers.front());
    transfers.pop_front();
    any = true;
  }
  return any;
}

void DiskStore::finish(DiskTransfer& transfer) {
  const bool is_read = transfer.kind == DiskTransfer::Kind::kRead;
  (is_read ? reading_ : writing_) -= transfer.bytes;
  PageEntry* page = transfer.page;
  if (!page) {
    world_.free_on_host(std::move(transfer.host), std::move(transfer.ready));
    return;
  }
  transfer.has_failed = !transfer.error.empty();
  if (is_read && transfer.has_failed) {
    // Whoever needs the bytes is told why they are not there.
    world_.free_on_host(std::exchange(transfer.host, {}), nullptr);
    return;
  }
  if (is_read) {
    page->host = std::move(transfer.host);
  } else if (transfer.has_failed) {
    failure_ = transfer.error;
  } else {
    put_on_disk(page, std::move(transfer.space));
  }
  page->transfer = nullptr;
  page->update();
}

void DiskStore::put_on_disk(PageEntry* page, std::shared_ptr<DiskSpace> space) {
  const auto bytes = static_cast<int64_t>(page->bytes);
  if (page->disk) {
    stats_.on_disk_bytes.remove(bytes);
  }
  if (space) {
    stats_.on_disk_bytes.add(bytes);
  }
  page->disk = std::move(space);
}

void DiskStore::drop(PageEntry* page) {
  if (!page->disk && !page->transfer) {
    return;
  }
  put_on_disk(page, nullptr);
  if (const auto transfer = std::exchange(page->transfer, nullptr)) {
    transfer->page = nullptr;
    if (transfer->kind == DiskTransfer::Kind::kWrite) {
      transfer->host = std::exchange(page->host, {});
      transfer->ready = page->write_back ? page->write_back : page->arrival;
      page->write_back = nullptr;
    }
  }
  if (!page->dead) {
    page->update();
  }
}

// --- memory of the host ---

// Gives up what is needed last, if it is needed later, until there is memory,
// now or after the wait.
HostPieces DiskStore::take_from(
    Survey& survey,
    size_t bytes,
    HostNeed later_than,
    HostMemory::Wait& wait) {
  HostPieces host;
  size_t given_up = 0;
  while (host.empty() && !wait.is_needed() && !survey.on_both.empty()) {
    PageEntry* page = survey.on_both.top();
    if (host_need_of(*page) <= later_than) {
      break;
    }
    survey.on_both.pop();
    survey.spare -= page->bytes;
    survey.on_host_bytes -= page->bytes;
    given_up += page->bytes;
    if (!page->host.empty()) { // HostStore::allocate may have taken it already
      const bool is_short = !world_.traits().evicts_all;
      stats_.overruled += is_short && is_kept_from_disk(*page) ? 1 : 0;
      host_.free(page);
      page->update();
    }
    if (given_up >= bytes) {
      host = world_.allocate_on_host(bytes, HostMemory::Claim::kWhole, wait);
    }
  }
  return host;
}

// The host waits for the oldest transfer.
void DiskStore::await_one(HostMemory::Wait& wait) {
  const Transfers& first = writes_.empty() ? reads_ : writes_;
  if (!first.empty()) {
    wait.await(first.front()->end);
  }
}

HostPieces DiskStore::allocate(size_t bytes, HostMemory::Wait& wait) {
  HostPieces host = host_.allocate(bytes, wait);
  if (!host.empty() || wait.is_needed() || !world_.has_disk()) {
    return host;
  }
  is_needed_ = true;
  collect();
  Survey found = survey();
  host = take_from(found, bytes, kNeededNow, wait);
  if (host.empty() && !wait.is_needed()) {
    write_behind(found, bytes + spare_of(found.on_host_bytes));
    await_one(wait);
  }
  return host;
}

HostPieces DiskStore::allocate_if_sooner(const PageEntry& page) {
  HostMemory::Wait none(/*is_allowed=*/false);
  HostPieces host = host_.allocate(page.bytes, none);
  if (host.empty()) {
    collect();
    Survey found = survey();
    if (is_foreseen(page) && !none.is_needed()) {
      host = take_from(found, page.bytes, need_of(page), none);
    }
  }
  return host;
}

bool DiskStore::bring_to_host(PageEntry* page, HostMemory::Wait& wait) {
  collect();
  if (!page->host.empty() || !page->disk) {
    return true;
  }
  if (!page->transfer) {
    HostPieces host = allocate(page->bytes, wait);
    if (host.empty() && !wait.is_needed()) {
      host = world_.allocate_on_host(
          page->bytes, HostMemory::Claim::kBeyond, wait);
    }
    if (host.empty() && wait.is_needed()) {
      return false;
    }
    if (host.empty() || !read(page, std::move(host))) {
      throw std::runtime_error(
          "LMS cannot read a tensor back from disk: the host has no memory "
          "for it");
    }
  } else if (page->transfer->has_failed) {
    throw std::runtime_error(page->transfer->error);
  }
  wait.await(page->transfer->end);
  return false;
}

void DiskStore::forget_failure(PageEntry* page) {
  if (page->transfer && page->transfer->has_failed) {
    page->transfer = nullptr;
  }
}

// --- ahead of need ---

void DiskStore::advance() {
  const bool takes_all = world_.traits().evicts_all && world_.has_disk();
  if (!is_needed_ && !takes_all) {
    return;
  }
  if (!collect() && ++operators_ < kOperatorsPerSurvey && !takes_all) {
    return;
  }
  operators_ = 0;
  Survey found = survey();
  if (takes_all) {
    HostMemory::Wait none(/*is_allowed=*/false);
    (void)take_from(found, Page::kNever, kNeededNow, none);
    write_behind(found, Page::kNever);
    return;
  }
  read_ahead(found);
  const size_t wanted = spare_of(found.on_host_bytes);
  if (wanted > 0 && !is_at_hand(wanted)) {
    write_behind(found, wanted);
  }
}

// There is host memory that nobody uses.
bool DiskStore::is_at_hand(size_t bytes) {
  HostMemory::Wait none(/*is_allowed=*/false);
  HostPieces host =
      world_.allocate_on_host(bytes, HostMemory::Claim::kShare, none);
  const bool is_there = !host.empty();
  if (is_there) {
    world_.free_on_host(std::move(host), nullptr);
  }
  return is_there;
}

void DiskStore::read_ahead(Survey& survey) {
  while (reading_ < kMostInTransfer && !survey.on_disk.empty()) {
    PageEntry* page = survey.on_disk.top();
    if (!is_foreseen(*page)) {
      return;
    }
    HostMemory::Wait none(/*is_allowed=*/false);
    HostPieces host = host_.allocate(page->bytes, none);
    if (host.empty() && !none.is_needed()) {
      host = take_from(survey, page->bytes, need_of(*page), none);
    }
    if (host.empty() || !read(page, std::move(host))) {
      return;
    }
    survey.on_disk.pop();
  }
}

// Writes what is needed last, until so many bytes can be given up at once when
// it is done.
void DiskStore::write_behind(Survey& survey, size_t wanted) {
  while (survey.spare + writing_ < wanted && !survey.on_host.empty() &&
         write(survey.on_host.top())) {
    survey.on_host.pop();
  }
}

} // namespace at::cuda::lms
