// What products take of memory besides their results.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace simcuda {

// Has PyTorch make a handle of cuBLAS for the calling thread, with a workspace
// for the current stream, if the operator is a product and nobody has made one;
// and cuBLASLt's, which keeps one from PyTorch 2.9 on. Those of PyTorch 2.15,
// which last for one product, are left out, but with
// TORCH_CUBLAS_WORKSPACE_CACHE=1. Only with SIMCUDA_CUBLAS=1.
void take_workspace(const c10::OperatorHandle& op);

}  // namespace simcuda
