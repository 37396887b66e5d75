// Which of the devices the program sees, and in which order: those that
// CUDA_VISIBLE_DEVICES numbers. It is read when first asked for, as CUDA does,
// so that a program may set it until then.
#pragma once

namespace simcuda {

// How many the program sees.
int visible_devices();

// The number among all devices of one that the program sees.
int physical_device(int device);

}  // namespace simcuda
