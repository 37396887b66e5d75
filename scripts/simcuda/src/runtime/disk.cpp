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

// pread and pwrite, each of which has its own kind of memory: the call of that
// name. On such a file it is counted, and in timed mode not made.
template <class Memory>
ssize_t transfer(const char* name, std::atomic<uint64_t>& count, int file,
                 Memory memory, size_t bytes, off_t offset) {
  using Call = ssize_t (*)(int, Memory, size_t, off_t);
  static const auto real = reinterpret_cast<Call>(dlsym(RTLD_NEXT, name));
  static Function& function = simcuda::function(name, cudaErrorUnknown);
  if (is_direct(file)) {
    if (function.count() != cudaSuccess) {
      errno = EIO;
      return -1;
    }
    count += bytes;
    if (timed()) {
      return static_cast<ssize_t>(bytes);
    }
  }
  return real(file, memory, bytes, offset);
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
  return transfer("pread", bytes_read, file, memory, bytes, offset);
}

SIMCUDA_API ssize_t pwrite(int file, const void* memory, size_t bytes,
                           off_t offset) {
  return transfer("pwrite", bytes_written, file, memory, bytes, offset);
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
