// What the program reads from disks and writes to them, past the page cache
// (O_DIRECT): such calls can be made to fail, and in timed mode they take
// virtual time and move no bytes.
#pragma once

#include <functional>

#include "cost.h"

namespace simcuda {

// Runs the function, in timed mode. Returns what the calls cost that are made
// meanwhile, by whatever thread.
Cost disk_cost(const std::function<void()>& function);

}  // namespace simcuda
