#include <ATen/cuda/detail/LMSHostDisk.h>

#include <ATen/cuda/detail/LMSCoreLayout.h>
#include <ATen/cuda/detail/LMSHostDiskThreads.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

namespace at::cuda::lms {
namespace {

// The file's first byte as an address. No place on disk is null.
constexpr uintptr_t kFirst = 4096;
// By so much the file grows at a time, bytes: processes look at the ledger no
// more often.
constexpr size_t kDiskSlab = size_t{256} << 20;

char* address_of_offset(size_t offset) {
  return reinterpret_cast<char*>(kFirst + offset);
}

off_t offset_at(const char* address) {
  return static_cast<off_t>(reinterpret_cast<uintptr_t>(address) - kFirst);
}

// Of Linux 3.11. Headers of older C libraries do not have it.
#ifdef O_TMPFILE
constexpr int kNameless = O_TMPFILE;
#else
constexpr int kNameless = 020000000 | O_DIRECTORY;
#endif

[[noreturn]] void refuse_disk(
    const std::string& folder,
    const std::string& what) {
  throw std::runtime_error("LMS cannot use " + folder + " as a disk: " + what);
}

int open_nameless(const std::string& folder) {
  constexpr int kFlags = O_RDWR | O_DIRECT | O_CLOEXEC;
  int file = open(folder.c_str(), kFlags | kNameless, 0600);
  if (file >= 0 ||
      (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)) {
    return file;
  }
  std::string name = folder + "/.pytorch-lms.XXXXXX";
  file = mkostemp(name.data(), O_DIRECT | O_CLOEXEC);
  if (file >= 0) {
    (void)unlink(name.c_str());
  }
  return file;
}

// One for each folder, beside that of the host's memory.
std::vector<std::string> ledgers_of(const std::string& folder) {
  struct stat found {};
  std::vector<std::string> files = HostLedger::default_files();
  const int opened = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (opened < 0 || fstat(opened, &found) != 0) {
    files.clear();
  }
  if (opened >= 0) {
    (void)close(opened);
  }
  for (std::string& file : files) {
    file += ".disk-" + std::to_string(found.st_dev) + "-" +
        std::to_string(found.st_ino);
  }
  return files;
}

struct Chosen {
  std::mutex mutex;
  std::shared_ptr<Disk> disk;
};

Chosen& chosen_disk() {
  static auto* chosen = new Chosen(); // leaked: used until the very end
  return *chosen;
}

} // namespace

struct Disk::Space final : DiskSpace {
  Space(std::shared_ptr<Disk> owner, HostPieces places)
      : disk(std::move(owner)), pieces(std::move(places)) {}
  ~Space() override {
    disk->give_back(pieces);
  }

  const std::shared_ptr<Disk> disk;
  const HostPieces pieces;
};

Disk::Disk(std::string folder, size_t limit)
    : folder_(std::move(folder)), limit_(limit), ledger_(ledgers_of(folder_)) {
  file_ = open_nameless(folder_);
  if (file_ < 0) {
    const int error = errno;
    refuse_disk(
        folder_,
        error == EINVAL ? "its file system does not read and write past the "
                          "page cache (O_DIRECT), as one in memory does not. "
                          "Choose a folder on a local disk"
                        : std::strerror(error));
  }
  struct statvfs found {};
  const bool is_known = fstatvfs(file_, &found) == 0;
  const size_t available =
      is_known ? size_t{found.f_bavail} * size_t{found.f_frsize} : limit;
  std::string problem;
  if (available < limit) {
    problem = std::to_string(limit) + " bytes were asked for and " +
        std::to_string(available) + " are free";
  } else {
    std::unique_ptr<char, decltype(&std::free)> memory(
        static_cast<char*>(std::aligned_alloc(kAlignment, kAlignment)),
        &std::free);
    std::memset(memory.get(), 0, kAlignment);
    HostRange all{memory.get(), kAlignment};
    for (const bool is_write : {true, false}) {
      const int error = transfer_bytes(file_, {{all, 0}}, is_write);
      problem =
          problem.empty() && error != 0 ? error_of(is_write, error) : problem;
    }
  }
  if (!problem.empty()) {
    (void)close(file_);
    refuse_disk(folder_, problem);
  }
}

Disk::~Disk() {
  (void)close(file_);
}

std::string Disk::error_of(bool is_write, int error) const {
  return std::string(is_write ? "writing to " : "reading from ") + folder_ +
      " failed: " + std::strerror(error);
}

std::shared_ptr<DiskSpace> Disk::allocate(size_t bytes) {
  bytes = round_up(bytes, kAlignment);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (has_failed_) {
    return nullptr;
  }
  HostPieces pieces = free_.take(bytes);
  if (pieces.empty() && grow(bytes)) {
    pieces = free_.take(bytes);
  }
  if (pieces.empty()) {
    return nullptr;
  }
  used_ += bytes;
  return std::make_shared<Space>(shared_from_this(), std::move(pieces));
}

bool Disk::grow(size_t bytes) {
  for (const size_t more : {std::max(bytes, kDiskSlab), bytes}) {
    if (ledger_.take(more, limit_, HostLedger::Claim::kWhole)) {
      free_.add_slab(address_of_offset(end_), more);
      end_ += more;
      return true;
    }
  }
  return false;
}

void Disk::give_back(const HostPieces& pieces) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const HostRange& piece : pieces) {
    used_ -= piece.bytes;
    free_.give_back(piece);
  }
}

void Disk::run(DiskTransfer& transfer) noexcept {
  const bool is_write = transfer.kind == DiskTransfer::Kind::kWrite;
  const auto& space = static_cast<const Space&>(*transfer.space);
  Disk& disk = *space.disk;
  int error = 0;
  try {
    size_t left = round_up(transfer.bytes, kAlignment);
    std::vector<DiskRange> ranges;
    auto place = space.pieces.begin();
    size_t done = 0; // of the place
    for (HostRange piece : transfer.host) {
      piece.bytes = std::min(piece.bytes, left);
      left -= piece.bytes;
      while (piece.bytes > 0) {
        const size_t part = std::min(piece.bytes, place->bytes - done);
        ranges.push_back({{piece.begin, part}, offset_at(place->begin + done)});
        piece = {piece.begin + part, piece.bytes - part};
        done += part;
        if (done == place->bytes) {
          ++place;
          done = 0;
        }
      }
    }
    error = transfer_bytes(disk.file_, ranges, is_write);
  } catch (...) { // no memory for the lists
    error = ENOMEM;
  }
  if (error != 0) {
    transfer.error = disk.error_of(is_write, error);
    const std::lock_guard<std::mutex> lock(disk.mutex_);
    disk.has_failed_ = disk.has_failed_ || is_write;
  }
}

bool Disk::is_usable() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !has_failed_;
}

Disk::Stats Disk::stats() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {limit_, used_, ledger_.others().bytes};
}

void Disk::choose(std::shared_ptr<Disk> disk) {
  Chosen& chosen = chosen_disk();
  std::shared_ptr<Disk> before; // ends without the mutex
  const std::lock_guard<std::mutex> lock(chosen.mutex);
  before = std::exchange(chosen.disk, std::move(disk));
}

std::shared_ptr<Disk> Disk::chosen() {
  Chosen& chosen = chosen_disk();
  const std::lock_guard<std::mutex> lock(chosen.mutex);
  return chosen.disk;
}

} // namespace at::cuda::lms
