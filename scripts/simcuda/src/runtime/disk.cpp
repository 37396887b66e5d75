#include "disk.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>

#include "../simcuda.h"
#include "calls.h"
#include "card.h"
#include "config.h"

using namespace simcuda;

namespace {

std::atomic<uint64_t> bytes_read{0};
std::atomic<uint64_t> bytes_written{0};

bool is_direct(int file) {
  const int flags = fcntl(file, F_GETFL);
  return flags >= 0 && (flags & O_DIRECT) != 0;
}

// What a call on such a file returns without being made; 0: it is made.
ssize_t instead_of_call(Function& function, std::atomic<uint64_t>& count,
                        size_t bytes) {
  if (function.count() != cudaSuccess) {
    errno = EIO;
    return -1;
  }
  count += bytes;
  return timed() ? static_cast<ssize_t>(bytes) : 0;
}

}  // namespace

namespace simcuda {

Cost disk_cost(const std::function<void()>& function) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> one_at_a_time(mutex);
  const uint64_t read = bytes_read;
  const uint64_t written = bytes_written;
  function();
  return Cost{Part::Disk,
              card().disk(bytes_read - read, bytes_written - written), "disk"};
}

}  // namespace simcuda

extern "C" {

SIMCUDA_API ssize_t pread(int file, void* memory, size_t bytes, off_t offset) {
  static const auto real =
      reinterpret_cast<decltype(&pread)>(dlsym(RTLD_NEXT, "pread"));
  static Function& function = simcuda::function("pread", cudaErrorUnknown);
  ssize_t done = 0;
  if (is_direct(file)) {
    done = instead_of_call(function, bytes_read, bytes);
  }
  return done != 0 ? done : real(file, memory, bytes, offset);
}

SIMCUDA_API ssize_t pwrite(int file, const void* memory, size_t bytes,
                           off_t offset) {
  static const auto real =
      reinterpret_cast<decltype(&pwrite)>(dlsym(RTLD_NEXT, "pwrite"));
  static Function& function = simcuda::function("pwrite", cudaErrorUnknown);
  ssize_t done = 0;
  if (is_direct(file)) {
    done = instead_of_call(function, bytes_written, bytes);
  }
  return done != 0 ? done : real(file, memory, bytes, offset);
}

// In timed mode there is room for what is not written.
SIMCUDA_API int fstatvfs(int file, struct statvfs* found) {
  static const auto real =
      reinterpret_cast<decltype(&fstatvfs)>(dlsym(RTLD_NEXT, "fstatvfs"));
  const int result = real(file, found);
  if (timed() && result == 0 && is_direct(file)) {
    found->f_bavail = (uint64_t{1} << 50) / found->f_frsize;
  }
  return result;
}
}
