// Device memory has no contents in timed mode; what is read of it is zero.
#pragma once

#include <cstddef>

namespace simcuda {

// Makes host memory read as zero, touching only pages that are in use already:
// others read as zero by themselves and shall not take memory.
void write_zeros(void* address, size_t bytes);
// Copies host memory, as little as that: from pages that are in use.
void copy_present(void* to, const void* from, size_t bytes);

}  // namespace simcuda
