#include <ATen/cuda/detail/LMSHostLedger.h>

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <thread>

namespace at::cuda::lms {
namespace {

constexpr size_t kMutex = 0; // the slot that stands for the whole file
constexpr size_t kMaxSlots = 1024; // one less than processes at a time
constexpr uint64_t kMagic = 0x3172'6467'6c53'4d4c; // "LMSlgdr1"

off_t offset_of(size_t slot) {
  return static_cast<off_t>(slot * sizeof(uint64_t));
}

// Asks for the lock of a slot, or about it. False if it cannot be had.
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

// The process that holds the lock of a slot; 0 if nobody does or the kernel
// does not say, as of one in another container.
pid_t holder_of(int file, size_t slot) {
  struct flock request {};
  request.l_type = F_WRLCK;
  request.l_whence = SEEK_SET;
  request.l_start = offset_of(slot);
  request.l_len = sizeof(uint64_t);
  return fcntl(file, F_GETLK, &request) == 0 && request.l_type != F_UNLCK
      ? request.l_pid
      : 0;
}

bool is_stopped(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(')'); // of the name, which may be anything
  return name_end != std::string::npos && name_end + 2 < line.size() &&
      (line[name_end + 2] == 'T' || line[name_end + 2] == 't');
}

// The mutex of the file, see Note [A ledger that others cannot spoil].
class FileLock {
 public:
  FileLock(int file, bool may_wait) : file_(file) {
    if (file < 0) {
      return;
    }
    held_ = try_lock(file, kMutex);
    const auto give_up = Clock::now() + kPatience;
    while (!held_ && may_wait && Clock::now() < give_up &&
           !is_stopped(holder_of(file, kMutex))) {
      std::this_thread::sleep_for(kPause);
      held_ = try_lock(file, kMutex);
    }
  }
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
  using Clock = std::chrono::steady_clock;
  // The critical sections are some microseconds long.
  static constexpr std::chrono::seconds kPatience{2};
  static constexpr std::chrono::microseconds kPause{50};

  const int file_;
  bool held_ = false;
};

// Whether the file is a ledger that only its user can have made.
bool is_ledger(int file) {
  struct stat found {};
  uint64_t magic = 0;
  return file >= 0 && fstat(file, &found) == 0 && S_ISREG(found.st_mode) &&
      found.st_uid == geteuid() && found.st_nlink == 1 &&
      found.st_size % sizeof(uint64_t) == 0 &&
      found.st_size <= offset_of(kMaxSlots) &&
      pread(file, &magic, sizeof(magic), offset_of(kMutex)) ==
      static_cast<ssize_t>(sizeof(magic)) &&
      magic == kMagic;
}

// A descriptor of the file, without an effect on whatever it may be.
int open_if_ledger(const std::string& name) {
  const int file = open(
      name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK);
  if (file >= 0 && !is_ledger(file)) {
    (void)close(file);
    errno = EEXIST;
    return -1;
  }
  return file;
}

// Makes a ledger of that name, unless there is a file already. It gets the name
// when it is complete: nobody ever sees half of one.
void make_ledger(const std::string& name) {
  std::string draft = name + ".XXXXXX";
  const int file = mkostemp(draft.data(), O_CLOEXEC); // only for its user
  if (file < 0) {
    return;
  }
  const bool is_written = write(file, &kMagic, sizeof(kMagic)) ==
      static_cast<ssize_t>(sizeof(kMagic));
  (void)close(file);
  if (!is_written ||
      syscall(
          SYS_renameat2,
          AT_FDCWD,
          draft.c_str(),
          AT_FDCWD,
          name.c_str(),
          RENAME_NOREPLACE) != 0) {
    (void)unlink(draft.c_str());
  }
}

// A descriptor of the user's ledger; -1 if there is none and none can be made.
int open_file(const std::string& name) {
  int file = open_if_ledger(name);
  if (file < 0 && errno == ENOENT) {
    make_ledger(name);
    file = open_if_ledger(name);
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
  const std::string name =
      "/pytorch-lms-" + std::to_string(geteuid()) + ".ledger";
  return {"/dev/shm" + name, "/tmp" + name};
}

bool HostLedger::has_room(size_t bytes, size_t limit, Claim claim) const {
  if (claim == Claim::kBeyond) {
    return true;
  }
  const Others others = this->others();
  const size_t sharers = is_shared() && claim == Claim::kShare
      ? std::max(others.processes + 1, launched_)
      : 1;
  const size_t share = limit / sharers;
  return bytes <= share && taken_ <= share - bytes &&
      taken_ + others.bytes <= limit - bytes;
}

bool HostLedger::take(size_t bytes, size_t limit, Claim claim) {
  const FileLock mutex(is_shared_ ? file_ : -1, /*may_wait=*/!is_stuck_);
  is_stuck_ = is_shared_ && !mutex.is_held();
  is_shared_ = is_shared_ && is_ledger(file_) && find_slot();
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
  const size_t slots = std::min(
      static_cast<size_t>(found.st_size) / sizeof(uint64_t), kMaxSlots);
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
  is_shared_ = is_ledger(file_) &&
      pwrite(file_, &bytes, sizeof(bytes), offset_of(slot_)) ==
          static_cast<ssize_t>(sizeof(bytes));
}

// A slot of this process's own, if it has none yet.
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
