// What several processes take of the same devices' memory, in the file that
// SIMCUDA_SHARED names: byte counts and nothing else.
#pragma once

#include <cstdint>

namespace simcuda {

// True if the devices are shared with other processes.
bool shares_card();

// Notes that this process has so many bytes of the device from now on. False,
// and nothing is noted, if all processes together would have more than its
// capacity. True where nothing is shared.
bool note_on_card(int device, uint64_t bytes);

// Bytes that other processes have, those that live.
uint64_t taken_by_others(int device);

}  // namespace simcuda
