#include <ATen/cuda/detail/LMSHostRecords.h>

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <thread>

namespace at::cuda::lms {
namespace {

constexpr size_t kHeader = 0; // the record that stands for the whole file
constexpr size_t kMutexBytes = sizeof(uint64_t); // bytes of it that are locked
constexpr size_t kMaxRecords = 1024; // one less than processes at a time

using RecordNumbers = std::array<uint64_t, SharedRecords::kMostNumbers>;

// The bytes of a file that a record has.
struct Place {
  off_t begin;
  off_t bytes;

  Place(size_t record, size_t bytes)
      : begin(static_cast<off_t>(record * bytes)),
        bytes(static_cast<off_t>(bytes)) {}
};

struct flock lock_request(const Place& place, short kind) {
  struct flock request {};
  request.l_type = kind;
  request.l_whence = SEEK_SET;
  request.l_start = place.begin;
  request.l_len = place.bytes;
  return request;
}

// Takes or gives back the lock of a record. False if it cannot be had.
bool set_lock(int file, const Place& place, short kind) {
  struct flock request = lock_request(place, kind);
  int result = 0;
  do {
    result = fcntl(file, F_SETLK, &request);
  } while (result == -1 && errno == EINTR);
  return result == 0;
}

// Whether another process holds the lock of a record, and which: 0 if the
// kernel does not say, as of one in another container.
struct Holder {
  bool is_there = false;
  pid_t process = 0;
};

Holder holder_of(int file, const Place& place) {
  struct flock request = lock_request(place, F_WRLCK);
  const bool is_there =
      fcntl(file, F_GETLK, &request) == 0 && request.l_type != F_UNLCK;
  return {is_there, is_there ? request.l_pid : 0};
}

bool is_stopped(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(')'); // of the name, which may be anything
  return name_end != std::string::npos && name_end + 2 < line.size() &&
      (line[name_end + 2] == 'T' || line[name_end + 2] == 't');
}

bool read_numbers(int file, const Place& place, uint64_t* numbers) {
  return pread(file, numbers, static_cast<size_t>(place.bytes), place.begin) ==
      place.bytes;
}

// What a file has to be.
struct Kind {
  uint64_t magic;
  size_t record; // bytes
};

// Whether the file is one of that kind that only its user can have made.
bool is_of_kind(int file, const Kind& kind) {
  struct stat found {};
  RecordNumbers first{};
  return file >= 0 && fstat(file, &found) == 0 && S_ISREG(found.st_mode) &&
      found.st_uid == geteuid() && found.st_nlink == 1 &&
      static_cast<size_t>(found.st_size) % kind.record == 0 &&
      static_cast<size_t>(found.st_size) <= kMaxRecords * kind.record &&
      read_numbers(file, {kHeader, kind.record}, first.data()) &&
      first[0] == kind.magic;
}

// A descriptor of the file, without an effect on whatever it may be.
int open_if_of_kind(const std::string& name, const Kind& kind) {
  const int file = open(
      name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK);
  if (file >= 0 && !is_of_kind(file, kind)) {
    (void)close(file);
    errno = EEXIST;
    return -1;
  }
  return file;
}

// Makes a file of that name, unless there is one already. It gets the name when
// it is complete: nobody ever sees half of one.
void make_file(const std::string& name, const Kind& kind) {
  std::string draft = name + ".XXXXXX";
  const int file = mkostemp(draft.data(), O_CLOEXEC); // only for its user
  if (file < 0) {
    return;
  }
  const RecordNumbers first{kind.magic};
  const bool is_written = write(file, first.data(), kind.record) ==
      static_cast<ssize_t>(kind.record);
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

// A descriptor; -1 if there is no such file and none can be made.
int open_file(const std::string& name, const Kind& kind) {
  int file = open_if_of_kind(name, kind);
  if (file < 0 && errno == ENOENT) {
    make_file(name, kind);
    file = open_if_of_kind(name, kind);
  }
  return file;
}

} // namespace

SharedRecords::SharedRecords(
    const std::vector<std::string>& files,
    uint64_t magic,
    size_t numbers)
    : magic_(magic), numbers_(std::min(numbers, kMostNumbers)) {
  for (const std::string& name : files) {
    if (file_ < 0) {
      file_ = open_file(name, {magic_, bytes()});
    }
  }
  is_shared_ = file_ >= 0;
}

SharedRecords::~SharedRecords() {
  if (file_ >= 0) {
    (void)close(file_); // which drops the locks
  }
}

// See Note [A ledger that others cannot spoil].
SharedRecords::Turn::Turn(SharedRecords& records)
    : file_(records.is_shared_ ? records.file_ : -1) {
  using Clock = std::chrono::steady_clock;
  // The critical sections are some microseconds long.
  constexpr std::chrono::seconds kPatience{2};
  constexpr std::chrono::microseconds kPause{50};
  if (file_ < 0) {
    return;
  }
  const Place mutex(kHeader, kMutexBytes);
  is_held_ = set_lock(file_, mutex, F_WRLCK);
  const auto give_up = Clock::now() + kPatience;
  while (!is_held_ && !records.is_stuck_ && Clock::now() < give_up &&
         !is_stopped(holder_of(file_, mutex).process)) {
    std::this_thread::sleep_for(kPause);
    is_held_ = set_lock(file_, mutex, F_WRLCK);
  }
  records.is_stuck_ = !is_held_;
}

SharedRecords::Turn::~Turn() {
  if (is_held_) {
    (void)set_lock(file_, {kHeader, kMutexBytes}, F_UNLCK);
  }
}

void SharedRecords::claim(const uint64_t* numbers) {
  is_shared_ = is_shared_ && is_of_kind(file_, {magic_, bytes()});
  if (!is_shared_ || own_ != kHeader) {
    return;
  }
  for (size_t record = kHeader + 1; own_ == kHeader && record < kMaxRecords;
       ++record) {
    own_ = set_lock(file_, {record, bytes()}, F_WRLCK) ? record : kHeader;
  }
  is_shared_ = own_ != kHeader;
  write(numbers);
}

void SharedRecords::write(const uint64_t* numbers) {
  if (!is_shared_ || own_ == kHeader) {
    return;
  }
  const Place place(own_, bytes());
  is_shared_ = is_of_kind(file_, {magic_, bytes()}) &&
      pwrite(file_, numbers, bytes(), place.begin) == place.bytes;
}

void SharedRecords::visit_others(
    const std::function<void(const uint64_t*)>& visit) const {
  struct stat found {};
  if (!is_shared() || fstat(file_, &found) != 0) {
    return;
  }
  const size_t records =
      std::min(static_cast<size_t>(found.st_size) / bytes(), kMaxRecords);
  RecordNumbers numbers{};
  for (size_t record = kHeader + 1; record < records; ++record) {
    const Place place(record, bytes());
    if (record != own_ && holder_of(file_, place).is_there &&
        read_numbers(file_, place, numbers.data())) {
      visit(numbers.data());
    }
  }
}

} // namespace at::cuda::lms
