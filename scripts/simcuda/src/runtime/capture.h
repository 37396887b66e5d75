// Stream capture: work on a captured stream becomes part of a graph and does
// not run. What CUDA forbids meanwhile fails with CUDA's error and invalidates
// the capture, so that its end fails too ("Creating a Graph Using Stream
// Capture" in the CUDA programming guide).
#pragma once

#include <driver_types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "stream.h"

namespace simcuda {

class Capture;
class Event;

// Work in an order in which it may run.
struct Graph {
  std::vector<Task> tasks;

  void launch(Stream& stream) const;
};

// How far a capture has got on each of its streams: numbers of tasks.
using Progress = std::map<const Stream*, uint64_t>;

// What an event stands for that was recorded on a captured stream.
struct CapturedPoint {
  std::shared_ptr<Capture> capture;
  Progress progress;
};

struct CaptureInfo {
  cudaStreamCaptureStatus status;
  unsigned long long id;  // 0 when there is no capture
};

cudaError_t begin_capture(Stream& stream, cudaStreamCaptureMode mode);
cudaError_t end_capture(Stream& stream, std::unique_ptr<Graph>& graph);
// Fails for a legacy default stream beside a capture that would wait for it.
cudaError_t find_capture(Stream& stream, CaptureInfo& info);
// Of the calling thread; the mode so far is what is left in `mode`.
void exchange_capture_mode(cudaStreamCaptureMode& mode);

// To be asked before the call does anything. Unless cudaSuccess, the call fails
// with it; what it would have broken is invalid from then on.

// Calls that may wait for the device or use the legacy default stream without
// saying so: cudaMalloc, cudaEventQuery and so on.
cudaError_t check_unsafe_call();
// Queuing work on the stream.
cudaError_t check_launch(Stream& stream);
// Looking at the stream, or the device, or waiting for it.
cudaError_t check_wait(Stream& stream);
cudaError_t check_wait(int device);
// Looking at the event or waiting for it, on the host.
cudaError_t check_wait(Event& event);
// What cannot be part of a graph.
cudaError_t check_not_captured(Stream& stream);

// True if the task has become part of a graph.
bool add_to_capture(Stream& stream, Task& task);
// Where the capture of the stream has got; no capture if it has none.
CapturedPoint captured_point(Stream& stream);
// The stream waits for an event. `is_done`: nothing is left to be waited for.
cudaError_t wait_in_capture(Stream& stream, Event& event, bool& is_done);

}  // namespace simcuda
