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

// Calls `use` with the offset and size of parts of the bytes that lie in pages
// which are all in use or all not, and which of both.
template <class Use>
void for_each_run(const void* address, size_t bytes, const Use& use) {
  static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(address);
  const uintptr_t end = begin + bytes;
  for (uintptr_t at = begin / page * page; at < end; at += kPages * page) {
    const size_t count = std::min(kPages, (end - at + page - 1) / page);
    const auto resident =
        find_resident(reinterpret_cast<void*>(at), count, page);
    for (size_t i = 0, next = 0; i < count; i = next) {
      const bool is_used = (resident[i] & 1) != 0;
      while (next < count && ((resident[next] & 1) != 0) == is_used) {
        ++next;
      }
      const uintptr_t from = std::max(begin, at + i * page);
      const uintptr_t to = std::min(end, at + next * page);
      use(from - begin, to - from, is_used);
    }
  }
}

}  // namespace

void write_zeros(void* address, size_t bytes) {
  auto* const begin = static_cast<char*>(address);
  for_each_run(address, bytes, [&](size_t offset, size_t size, bool is_used) {
    if (is_used) {
      std::memset(begin + offset, 0, size);
    }
  });
}

void copy_present(void* to, const void* from, size_t bytes) {
  auto* const target = static_cast<char*>(to);
  const auto* const source = static_cast<const char*>(from);
  for_each_run(from, bytes, [&](size_t offset, size_t size, bool is_used) {
    if (is_used) {
      std::memcpy(target + offset, source + offset, size);
    } else {
      write_zeros(target + offset, size);
    }
  });
}

}  // namespace simcuda
