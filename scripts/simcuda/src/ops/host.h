// Operators of the host that take virtual time.
#pragma once

namespace simcuda {

// In timed mode: fused optimizers on the host's tensors cost the traffic in its
// memory and compute nothing, and zeros there take no memory.
void time_host();

}  // namespace simcuda
