// Count of kernel launches that were refused, for the statistics.
#pragma once

#include <cstdint>

namespace simcuda {

uint64_t unsimulated_launches();

}  // namespace simcuda
