// Host memory whose pages are there and cleared, so that to page-lock it takes
// no more than the locking: that which was asked for by MADV_POPULATE_WRITE.
#pragma once

#include <cstddef>

namespace simcuda {

void note_cleared(const void* begin, size_t bytes);
// How much of the range is, which is then forgotten: the program may unmap it.
size_t take_cleared(const void* begin, size_t bytes);

}  // namespace simcuda
