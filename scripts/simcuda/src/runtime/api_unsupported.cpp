// CUDA runtime: what is not simulated and says so. Clean-up functions succeed.
#include <cuda_runtime_api.h>

#include "../simcuda.h"
#include "calls.h"

using simcuda::not_simulated;

extern "C" {

// What there is of graphs is in api_graph.cpp.

SIMCUDA_API cudaError_t cudaGraphDebugDotPrint(cudaGraph_t, const char*,
                                               unsigned) {
  return not_simulated("cudaGraphDebugDotPrint");
}

#if CUDART_VERSION >= 13000
SIMCUDA_API cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t,
                                                     cudaGraphNode_t*,
                                                     cudaGraphEdgeData*,
                                                     size_t*) {
  return not_simulated("cudaGraphNodeGetDependencies");
}
#endif

// Memory pools: cudaMallocAsync works, its pools have nothing to set.

SIMCUDA_API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool,
                                                    int /*device*/) {
  static int the_pool;
  *pool = reinterpret_cast<cudaMemPool_t>(&the_pool);
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr,
                                                void*) {
  return not_simulated("cudaMemPoolGetAttribute");
}

SIMCUDA_API cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr,
                                                void*) {
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaMemPoolSetAccess(cudaMemPool_t,
                                             const cudaMemAccessDesc*, size_t) {
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) {
  return cudaSuccess;
}
}
