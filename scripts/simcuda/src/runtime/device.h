// The calling thread's current device.
#pragma once

namespace simcuda {

int current_device();
bool valid_device(int device);

}  // namespace simcuda
