// nccl.h without the headers of CUDA's small floating-point types, of which it
// uses nothing: they need a package that the runtime does not.
#pragma once

#define __CUDA_FP16_H__
#define __CUDA_BF16_H__
#define __CUDA_FP8_H__
#define __CUDA_BF16_TYPES_EXIST__  // older ones name the type only then
#include <nccl.h>
