#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <string>

namespace at::cuda::lms {

// Note [Kernels as operators]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A kernel that Inductor launches by PyTorch's static launcher becomes an
// operator of the dispatcher, so that all that LMS does for operators is done
// for it, with one call from Python (torch/cuda/_lms_launches.py):
//
//   triton::NAME.lmsN(int grid_x, int grid_y, int grid_z, int? stream,
//                     Tensor in_ptr0, Tensor(a!) out_ptr0, int xnumel) -> ()
//
// It does what the static launcher does, on `stream`, the current one.
//
// Most of these kernels are pure: they read some tensors, write to others, and
// give the same bits each time. Such a one is called lms_pureN. It can run
// again, with None for `stream`: what is current then. What it calls `out_ptr`
// has been allocated for the kernel, or has died before: nothing that lies
// there is of use to anybody. The first kernel on new memory can run again on
// other memory. One that comes after it may leave some of what the one before
// wrote, as where tensors are concatenated, so for it the memory is made anew
// as well.

// Defines the operator, under a name that no other has.
// `function`: a CUfunction, loaded for ever. `shared`: bytes of dynamic shared
// memory. `types`: how the kernel takes its parameters, a letter each: O an
// address to read, W one to write to, f and d a float and a double, any other
// an integer. Parameters beyond the schema's arguments are null. Throws
// c10::Error for a schema that cannot be parsed.
void define_kernel(
    const std::string& schema,
    int64_t function,
    int64_t warps,
    int64_t shared,
    const std::string& types);

bool is_kernel(const c10::OperatorHandle& op);
bool is_pure_kernel(const c10::OperatorHandle& op);

} // namespace at::cuda::lms
