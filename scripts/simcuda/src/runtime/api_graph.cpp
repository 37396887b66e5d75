// CUDA runtime: stream capture and graphs. A graph runs on its stream one piece
// of work after the other, in the order of capture. See capture.h.
#include <cuda_runtime_api.h>

#include "../simcuda.h"
#include "calls.h"
#include "capture.h"
#include "config.h"
#include "device.h"

using namespace simcuda;

namespace {

Graph* graph_of(cudaGraph_t graph) {
  return reinterpret_cast<Graph*>(graph);
}

Graph* graph_of(cudaGraphExec_t graph) {
  return reinterpret_cast<Graph*>(graph);
}

cudaError_t get_info(cudaStream_t handle, CaptureInfo& info) {
  const auto stream = find_stream(handle, current_device());
  return stream ? find_capture(*stream, info) : cudaErrorInvalidResourceHandle;
}

}  // namespace

extern "C" {

SIMCUDA_API cudaError_t cudaStreamBeginCapture(cudaStream_t handle,
                                               cudaStreamCaptureMode mode) {
  SIMCUDA_ENTER("cudaStreamBeginCapture", cudaErrorUnknown);
  if (timed()) {
    return not_simulated("cudaStreamBeginCapture in virtual time");
  }
  const auto stream = find_stream(handle, current_device());
  return report(stream ? begin_capture(*stream, mode)
                       : cudaErrorInvalidResourceHandle);
}

SIMCUDA_API cudaError_t cudaStreamEndCapture(cudaStream_t handle,
                                             cudaGraph_t* graph) {
  SIMCUDA_ENTER("cudaStreamEndCapture", cudaErrorUnknown);
  const auto stream = find_stream(handle, current_device());
  if (!stream) {
    return report(cudaErrorInvalidResourceHandle);
  }
  std::unique_ptr<Graph> captured;
  const cudaError_t error = end_capture(*stream, captured);
  *graph = reinterpret_cast<cudaGraph_t>(captured.release());
  return report(error);
}

SIMCUDA_API cudaError_t cudaStreamIsCapturing(cudaStream_t handle,
                                              cudaStreamCaptureStatus* status) {
  CaptureInfo info{};
  const cudaError_t error = get_info(handle, info);
  *status = info.status;
  return report(error);
}

SIMCUDA_API cudaError_t
cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  exchange_capture_mode(*mode);
  return cudaSuccess;
}

#if CUDART_VERSION >= 13000
SIMCUDA_API cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t handle, cudaStreamCaptureStatus* status,
    unsigned long long* id, cudaGraph_t*, const cudaGraphNode_t**,
    const cudaGraphEdgeData**, size_t*) {
#else
SIMCUDA_API cudaError_t cudaStreamGetCaptureInfo_v2(
    cudaStream_t handle, cudaStreamCaptureStatus* status,
    unsigned long long* id, cudaGraph_t*, const cudaGraphNode_t**, size_t*) {
#endif
  CaptureInfo info{};
  const cudaError_t error = get_info(handle, info);
  *status = info.status;
  if (id != nullptr) {
    *id = info.id;
  }
  return report(error);
}

SIMCUDA_API cudaError_t cudaGraphInstantiateWithFlags(
    cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  SIMCUDA_ENTER("cudaGraphInstantiate", cudaErrorMemoryAllocation);
  *executable = reinterpret_cast<cudaGraphExec_t>(new Graph(*graph_of(graph)));
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaGraphLaunch(cudaGraphExec_t executable,
                                        cudaStream_t handle) {
  SIMCUDA_ENTER("cudaGraphLaunch", cudaErrorUnknown);
  const auto stream = find_stream(handle, current_device());
  if (!stream) {
    return report(cudaErrorInvalidResourceHandle);
  }
  if (const cudaError_t illegal = check_launch(*stream)) {
    return report(illegal);
  }
  graph_of(executable)->launch(*stream);
  return cudaSuccess;
}

// Tells how many there are; they have no handles.
SIMCUDA_API cudaError_t cudaGraphGetNodes(cudaGraph_t graph,
                                          cudaGraphNode_t* nodes,
                                          size_t* count) {
  if (nodes != nullptr) {
    return not_simulated("cudaGraphGetNodes");
  }
  *count = graph_of(graph)->tasks.size();
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph_of(graph);
  return cudaSuccess;
}

// What is queued of it runs all the same.
SIMCUDA_API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete graph_of(graph);
  return cudaSuccess;
}
}
