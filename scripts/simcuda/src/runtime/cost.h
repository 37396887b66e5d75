// What work on the device costs in virtual time; nothing in the other modes.
#pragma once

#include <cstdint>

#include "simulation.h"

namespace simcuda {

struct Cost {
  Part part = Part::Compute;
  Time takes = 0;
  const char* name = "";  // for the timeline; lives for ever
};

// `bytes` read or written in the device's memory.
Cost traffic_cost(uint64_t bytes, const char* name);
Cost copy_cost(Part direction, uint64_t bytes, bool page_locked);
Cost sleep_cost(Time time);

}  // namespace simcuda
