#pragma once

#include <ATen/core/ivalue.h>

#include <string>

namespace at::cuda::lms {

// Note [Workspaces of cuBLAS]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Each thread that multiplies has a handle of cuBLAS, and PyTorch gives a
// handle a workspace for each stream, of 8 or 32 MiB, and often another one for
// cuBLASLt, from the caching allocator. It keeps its address until the process
// ends, but for PyTorch 2.15 where the user has not asked for that. Where
// memory has become one segment (Note [One segment]) it would lie in the
// middle: it divides what can be free, and the segment could never go back to
// the driver, not for another process that needs it either. The thread of the
// backward pass is such a latecomer. So LMS has the workspaces made before the
// first product of a thread on a stream, and takes them from segments apart.
//
// Other libraries keep memory as well, but nobody knows when they ask for it.

enum class BlasUse {
  kNone,
  kBlas,
  kBlasLt, // also
};

// What the operator of that name uses.
BlasUse blas_use(const std::string& name);

// Before such an operator runs on its first argument's device.
void prepare_workspace(BlasUse use, c10::ArrayRef<c10::IValue> arguments);

// Whether the calling thread is getting a workspace.
bool is_preparing_workspace();

// PyTorch has given one up, as it gives up all of them before a capture: they
// are made anew.
void note_freed_workspace();

} // namespace at::cuda::lms
