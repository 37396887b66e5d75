// Arithmetic of collectives.
#pragma once

#include "nccl_header.h"

#include <cstddef>
#include <vector>

#include "comm.h"

namespace simnccl {

// Bytes of a number; 0 for types that are not known.
size_t size_of(ncclDataType_t type);
bool can_reduce(ncclDataType_t type);

// Multiplies `count` numbers in place.
void multiply(void* numbers, size_t count, ncclDataType_t type, Scale scale);

// Combines `count` numbers of each of the parts, in order, so that the result
// is the same on all ranks and in every run.
void reduce(void* result, const std::vector<const void*>& parts, size_t count,
            ncclDataType_t type, ncclRedOp_t reduction);

}  // namespace simnccl
