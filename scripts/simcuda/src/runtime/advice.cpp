// What the program says of host memory, in timed mode: that the kernel shall
// clear pages now, and that it is meant for the devices.
#include <dlfcn.h>
#include <sys/mman.h>

#include "../simcuda.h"
#include "card.h"
#include "cleared_pages.h"
#include "config.h"
#include "memory.h"
#include "timing.h"

using namespace simcuda;

namespace {

constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, of Linux 5.14

}  // namespace

extern "C" SIMCUDA_API int madvise(void* address, size_t bytes,
                                   int advice) noexcept {
  static const auto real =
      reinterpret_cast<decltype(&madvise)>(dlsym(RTLD_NEXT, "madvise"));
  if (timed() && advice == kPopulateWrite) {
    // It takes its time, but no memory.
    timing::work_on(address);
    timing::spend(card().clearing(bytes));
    note_cleared(address, bytes);
    return 0;
  }
  const int result = real(address, bytes, advice);
  // So the kernel's manual says: for memory that devices read and write.
  if (timed() && advice == MADV_DONTFORK && result == 0) {
    timing::announce_page_locking(address, bytes);
  }
  return result;
}
