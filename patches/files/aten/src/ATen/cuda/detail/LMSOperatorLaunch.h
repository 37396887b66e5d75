#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace at::cuda::lms {

// Note [Launches]
// ~~~~~~~~~~~~~~~
// What Triton compiles, for Inductor or for a user, is launched from Python, by
// addresses, and the dispatcher sees nothing of it. Such a launch is an
// operator all the same: Python says when it begins and ends, with its tensors
// (torch/cuda/_lms_launches.py). Between the two they are pinned, so their
// addresses can be taken. Nothing is known of what the kernel computes, so no
// bytes are made again by it.
//
// A launch may measure which of several kernels is the fastest. What it
// allocates for that belongs to it, as what an operator allocates does.

// The launch begins on the calling thread, on the current stream. `written`:
// see touched_by_launch. Throws as Device::pin does, and has not begun then.
void begin_launch(
    const std::string& name,
    const std::vector<at::Tensor>& arguments,
    int64_t written);
// The last one that has begun on the thread ends; `failed`: nothing is queued.
void end_launch(bool failed);

} // namespace at::cuda::lms
