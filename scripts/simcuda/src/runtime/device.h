// The calling thread's current device, and what all devices are like.
#pragma once

#include <driver_types.h>

namespace simcuda {

int current_device();
bool valid_device(int device);
int device_attribute(cudaDeviceAttr attribute);

}  // namespace simcuda
