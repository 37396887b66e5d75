#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace at::cuda::lms {

// Note [Collectives]
// ~~~~~~~~~~~~~~~~~~
// An operator of torch.distributed returns while its tensors are still to be
// read and written, out of sight of the dispatcher: NCCL works on a stream of
// its own, Gloo copies to and from the device on a thread and streams of its
// own. So the storages stay pinned until the operator's Work says that it has
// completed. With NCCL the device is done then. Others may have queued copies
// that nobody else waits for yet: there the host waits for the device.
//
// Between NCCL's group calls, as for a batch of sends and receives, nothing is
// launched, though an operator may have a Work that says at once that it has
// completed. What is used there stays pinned until the group ends, and then
// until the Work of the group as a whole has completed. Where the group has
// none, or one that does not speak for all of it, the host waits for the
// device, unless all of it was queued on current streams.
//
// Outside of a group an operator without a Work is one that was told not to be
// asynchronous: it is queued on the current stream. If it was not told so the
// storages are held for the rest of their lives. Groups that C++ code begins
// are not seen: such code pins what it passes to them.
//
// The operators of torch.distributed._functional_collectives give their results
// out before they are written. These are not adopted: wait_tensor does that.

// The thread's calls between these are one group. Its Work may be None.
void begin_group();
void end_group(const c10::IValue& work);

// True for operators of torch.distributed.
bool is_collective(const c10::FunctionSchema& schema);

// run_operator for those.
void run_collective(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack);

// Unpins the storages of collectives that have completed. Called without a
// mutex of LMS or of the allocator.
void release_completed_collectives() noexcept;

// The same now and then, if a collective is under way; for every operator.
void look_after_collectives() noexcept;

} // namespace at::cuda::lms
