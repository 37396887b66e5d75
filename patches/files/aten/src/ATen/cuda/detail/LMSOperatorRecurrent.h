#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace at::cuda::lms {

// Note [Recurrent networks]
// ~~~~~~~~~~~~~~~~~~~~~~~~~
// lstm, gru and the like are made of other operators, which come by one by one.
// But with cuDNN they take addresses between these: to learn whether their
// weights lie in one piece and, under autocast, where in the copy of that piece
// each weight belongs. There is one large operator among them then, and it
// needs all arguments at once. So the whole runs as one: its arguments are
// pinned from the beginning to the end, and what operators inside of it make is
// managed when it has ended.

// True for the operators that are such networks.
bool is_recurrent(const c10::OperatorName& name);

// run_operator for those.
void run_recurrent(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack);

// Inside of such a network: keeps what another operator of it returned.
void keep_made_inside(c10::ArrayRef<c10::IValue> results);
// What is kept; nothing outside of such a network.
c10::ArrayRef<c10::IValue> made_inside();

} // namespace at::cuda::lms
