#include "zeros.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace simcuda {
namespace {

// Pages asked about at once.
constexpr size_t kPages = 4096;

// Which of the pages are in use; all of them when the kernel does not say.
std::vector<unsigned char> find_resident(void* page, size_t count,
                                         size_t page_size) {
  std::vector<unsigned char> resident(count, 1);
  if (mincore(page, count * page_size, resident.data()) != 0) {
    std::fill(resident.begin(), resident.end(), 1);
  }
  return resident;
}

}  // namespace

void write_zeros(void* address, size_t bytes) {
  static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(address);
  const uintptr_t end = begin + bytes;
  for (uintptr_t at = begin / page * page; at < end; at += kPages * page) {
    const size_t count = std::min(kPages, (end - at + page - 1) / page);
    const auto resident =
        find_resident(reinterpret_cast<void*>(at), count, page);
    for (size_t i = 0; i < count; ++i) {
      const uintptr_t from = std::max(begin, at + i * page);
      const uintptr_t to = std::min(end, at + (i + 1) * page);
      if ((resident[i] & 1) != 0) {
        std::memset(reinterpret_cast<void*>(from), 0, to - from);
      }
    }
  }
}

}  // namespace simcuda
