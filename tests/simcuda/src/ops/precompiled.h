// Compiled once, for all files of the folder; each still includes what it uses.
// No include guard: it is included once, by the compiler's command line.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>
