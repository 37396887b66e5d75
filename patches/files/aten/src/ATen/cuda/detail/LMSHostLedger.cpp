#include <ATen/cuda/detail/LMSHostLedger.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>

namespace at::cuda::lms {
namespace {

constexpr size_t kMutex = 0; // the slot that stands for the whole file
constexpr size_t kMaxSlots = 4096; // processes at a time

off_t offset_of(size_t slot) {
  return static_cast<off_t>(slot * sizeof(uint64_t));
}

// Asks for the lock of a slot, or about it. False if it cannot be had, with
// F_SETLKW only on errors.
bool lock(int file, size_t slot, int command, short kind, short* held) {
  struct flock request {};
  request.l_type = kind;
  request.l_whence = SEEK_SET;
  request.l_start = offset_of(slot);
  request.l_len = sizeof(uint64_t);
  int result = 0;
  do {
    result = fcntl(file, command, &request);
  } while (result == -1 && errno == EINTR);
  if (held) {
    *held = request.l_type;
  }
  return result == 0;
}

bool try_lock(int file, size_t slot) {
  return lock(file, slot, F_SETLK, F_WRLCK, nullptr);
}

bool is_locked_by_another(int file, size_t slot) {
  short held = F_UNLCK;
  return lock(file, slot, F_GETLK, F_WRLCK, &held) && held != F_UNLCK;
}

// Holds the mutex of the file, if there is one. The critical sections are some
// microseconds long.
class FileLock {
 public:
  explicit FileLock(int file)
      : file_(file),
        held_(file >= 0 && lock(file, kMutex, F_SETLKW, F_WRLCK, nullptr)) {}
  ~FileLock() {
    if (held_) {
      (void)lock(file_, kMutex, F_SETLK, F_UNLCK, nullptr);
    }
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  bool is_held() const {
    return held_;
  }

 private:
  const int file_;
  const bool held_;
};

// A descriptor of the user's own file; -1 if there is none and none can be
// made.
int open_file(const std::string& name) {
  const int file = open(
      name.c_str(),
      O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW,
      S_IRUSR | S_IWUSR);
  if (file < 0) {
    return -1;
  }
  struct stat found {};
  if (fstat(file, &found) != 0 || !S_ISREG(found.st_mode) ||
      found.st_uid != geteuid()) { // a file of somebody else's is no ledger
    (void)close(file);
    return -1;
  }
  return file;
}

} // namespace

HostLedger::HostLedger(const std::vector<std::string>& files) {
  if (const char* launched = std::getenv("LOCAL_WORLD_SIZE")) {
    launched_ = std::max(0L, std::strtol(launched, nullptr, 10));
  }
  for (const std::string& name : files) {
    if (file_ < 0) {
      file_ = open_file(name);
    }
  }
  is_shared_ = file_ >= 0;
}

HostLedger::~HostLedger() {
  if (file_ >= 0) {
    (void)close(file_); // which drops the locks
  }
}

std::vector<std::string> HostLedger::default_files() {
  const char* chosen = std::getenv("PYTORCH_LMS_HOST_LEDGER");
  if (chosen && *chosen) {
    return std::string(chosen) == "none" ? std::vector<std::string>{}
                                         : std::vector<std::string>{chosen};
  }
  // Not XDG_RUNTIME_DIR: what a job scheduler starts has none, and would count
  // apart from what the user starts.
  const std::string name = "/pytorch-lms-" + std::to_string(geteuid());
  return {"/dev/shm" + name, "/tmp" + name};
}

bool HostLedger::has_room(size_t bytes, size_t limit, Claim claim) const {
  const Others others = this->others();
  const size_t sharers = is_shared() && claim == Claim::kShare
      ? std::max(others.processes + 1, launched_)
      : 1;
  const size_t share = limit / sharers;
  return bytes <= share && taken_ <= share - bytes &&
      taken_ + others.bytes <= limit - bytes;
}

bool HostLedger::take(size_t bytes, size_t limit, Claim claim) {
  const FileLock mutex(file_);
  is_shared_ = is_shared_ && mutex.is_held() && find_slot();
  if (!has_room(bytes, limit, claim)) {
    return false;
  }
  taken_ += bytes;
  write_down();
  return true;
}

// Without the mutex: whoever reads the old number at this moment is refused
// what would just fit, and nothing worse.
void HostLedger::give_back(size_t bytes) {
  taken_ -= bytes;
  write_down();
}

HostLedger::Others HostLedger::others() const {
  Others others;
  struct stat found {};
  if (!is_shared() || fstat(file_, &found) != 0) {
    return others;
  }
  const size_t slots = static_cast<size_t>(found.st_size) / sizeof(uint64_t);
  for (size_t slot = kMutex + 1; slot < slots; ++slot) {
    uint64_t bytes = 0;
    if (slot != slot_ && is_locked_by_another(file_, slot) &&
        pread(file_, &bytes, sizeof(bytes), offset_of(slot)) ==
            static_cast<ssize_t>(sizeof(bytes))) {
      others.bytes += bytes;
      others.processes += bytes > 0 ? 1 : 0;
    }
  }
  return others;
}

void HostLedger::write_down() {
  if (!is_shared_ || slot_ == kMutex) {
    return;
  }
  const uint64_t bytes = taken_;
  is_shared_ = pwrite(file_, &bytes, sizeof(bytes), offset_of(slot_)) ==
      static_cast<ssize_t>(sizeof(bytes));
}

// A slot of this process's own, if it has none yet. The mutex is held.
bool HostLedger::find_slot() {
  for (size_t slot = kMutex + 1; slot_ == kMutex && slot < kMaxSlots; ++slot) {
    if (try_lock(file_, slot)) {
      slot_ = slot;
      write_down(); // whose it was may have ended with bytes taken
    }
  }
  return slot_ != kMutex;
}

} // namespace at::cuda::lms
