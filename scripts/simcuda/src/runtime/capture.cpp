#include "capture.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "event.h"

namespace simcuda {

// Guarded by the mutex of Captures.
class Capture {
 public:
  Capture(Stream& origin_, cudaStreamCaptureMode mode_, unsigned long long id_)
      : origin(&origin_), mode(mode_), id(id_) {}

  // The number of tasks that the stream itself has queued.
  void add(const Stream& stream, Task task) {
    ++of(stream)[&stream];
    graph->tasks.push_back(std::move(task));
  }

  // How far a stream has got, counting what it has waited for.
  Progress& of(const Stream& stream) {
    return progress_[&stream];
  }

  void join(const Stream& stream, const Progress& progress) {
    Progress& own = of(stream);
    for (const auto& [other, number] : progress) {
      own[other] = std::max(own[other], number);
    }
  }

  // Whether the stream that it began on waits for all the others' work.
  bool is_joined() {
    const Progress& at_end = of(*origin);
    return std::all_of(
        progress_.begin(), progress_.end(), [&at_end](const auto& entry) {
          const auto& [stream, progress] = entry;
          const auto own = progress.find(stream);
          const auto seen = at_end.find(stream);
          return own == progress.end() || own->second == 0 ||
                 (seen != at_end.end() && seen->second >= own->second);
        });
  }

  const Stream* const origin;
  const cudaStreamCaptureMode mode;
  const unsigned long long id;
  const std::thread::id thread = std::this_thread::get_id();
  bool is_valid = true;
  bool has_ended = false;
  std::unique_ptr<Graph> graph = std::make_unique<Graph>();

 private:
  std::map<const Stream*, Progress> progress_;
};

namespace {

struct Captures {
  std::mutex mutex;
  std::map<const Stream*, std::shared_ptr<Capture>> by_stream;
  unsigned long long last_id = 0;
  std::atomic<int> active{0};

  std::shared_ptr<Capture> of(const Stream& stream) const {
    const auto found = by_stream.find(&stream);
    return found == by_stream.end() ? nullptr : found->second;
  }
};

Captures& captures() {
  static Captures* all = new Captures;
  return *all;
}

thread_local cudaStreamCaptureMode mode_of_thread = cudaStreamCaptureModeGlobal;

cudaError_t invalidate(Capture& capture, cudaError_t error) {
  if (!capture.is_valid) {
    return cudaErrorStreamCaptureInvalidated;
  }
  capture.is_valid = false;
  return error;
}

// A capture that the stream's use would make the legacy default stream wait
// for: that of a stream which is not cudaStreamNonBlocking.
std::shared_ptr<Capture> capture_behind(Stream& stream) {
  if (!is_legacy(stream)) {
    return nullptr;
  }
  for (const auto& [captured, capture] : captures().by_stream) {
    if (captured->implicit && captured->device == stream.device) {
      return capture;
    }
  }
  return nullptr;
}

bool none_active() {
  return captures().active.load() == 0;
}

// Whether the calling thread may make unsafe calls beside the capture.
bool prohibits(const Capture& capture) {
  if (mode_of_thread == cudaStreamCaptureModeRelaxed) {
    return false;
  }
  if (capture.thread == std::this_thread::get_id()) {
    return capture.mode != cudaStreamCaptureModeRelaxed;
  }
  return mode_of_thread == cudaStreamCaptureModeGlobal &&
         capture.mode == cudaStreamCaptureModeGlobal;
}

// Whether work may be queued on the stream, and what captures it, if anything.
cudaError_t check_launch(Stream& stream, std::shared_ptr<Capture>& capture) {
  if (none_active()) {
    return cudaSuccess;
  }
  Captures& all = captures();
  std::lock_guard<std::mutex> lock(all.mutex);
  if (const auto behind = capture_behind(stream)) {
    invalidate(*behind, cudaErrorStreamCaptureImplicit);
    return cudaErrorStreamCaptureImplicit;
  }
  capture = all.of(stream);
  return capture && !capture->is_valid ? cudaErrorStreamCaptureInvalidated
                                       : cudaSuccess;
}

}  // namespace

void Graph::launch(Stream& stream) const {
  for (const Task& task : tasks) {
    stream.enqueue(task);
  }
}

cudaError_t begin_capture(Stream& stream, cudaStreamCaptureMode mode) {
  Captures& all = captures();
  std::lock_guard<std::mutex> lock(all.mutex);
  if (is_legacy(stream)) {
    return cudaErrorStreamCaptureUnsupported;
  }
  if (all.of(stream)) {
    return cudaErrorIllegalState;
  }
  all.by_stream[&stream] =
      std::make_shared<Capture>(stream, mode, ++all.last_id);
  ++all.active;
  return cudaSuccess;
}

cudaError_t end_capture(Stream& stream, std::unique_ptr<Graph>& graph) {
  Captures& all = captures();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto capture = all.of(stream);
  if (!capture) {
    return cudaErrorIllegalState;
  }
  if (capture->origin != &stream) {
    return invalidate(*capture, cudaErrorStreamCaptureUnmatched);
  }
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->thread != std::this_thread::get_id()) {
    return cudaErrorStreamCaptureWrongThread;
  }
  capture->has_ended = true;
  for (auto it = all.by_stream.begin(); it != all.by_stream.end();) {
    it = it->second == capture ? all.by_stream.erase(it) : std::next(it);
  }
  --all.active;
  if (!capture->is_valid) {
    return cudaErrorStreamCaptureInvalidated;
  }
  if (!capture->is_joined()) {
    return cudaErrorStreamCaptureUnjoined;
  }
  graph = std::move(capture->graph);
  return cudaSuccess;
}

cudaError_t find_capture(Stream& stream, CaptureInfo& info) {
  info = {cudaStreamCaptureStatusNone, 0};
  if (none_active()) {
    return cudaSuccess;
  }
  Captures& all = captures();
  std::lock_guard<std::mutex> lock(all.mutex);
  if (capture_behind(stream)) {
    return cudaErrorStreamCaptureImplicit;
  }
  if (const auto capture = all.of(stream)) {
    info = {capture->is_valid ? cudaStreamCaptureStatusActive
                              : cudaStreamCaptureStatusInvalidated,
            capture->id};
  }
  return cudaSuccess;
}

void exchange_capture_mode(cudaStreamCaptureMode& mode) {
  std::swap(mode, mode_of_thread);
}

cudaError_t check_unsafe_call() {
  if (none_active()) {
    return cudaSuccess;
  }
  Captures& all = captures();
  std::lock_guard<std::mutex> lock(all.mutex);
  cudaError_t error = cudaSuccess;
  for (const auto& [stream, capture] : all.by_stream) {
    if (prohibits(*capture)) {
      invalidate(*capture, cudaErrorStreamCaptureUnsupported);
      error = cudaErrorStreamCaptureUnsupported;
    }
  }
  return error;
}

cudaError_t check_launch(Stream& stream) {
  std::shared_ptr<Capture> capture;
  return check_launch(stream, capture);
}

cudaError_t check_not_captured(Stream& stream) {
  std::shared_ptr<Capture> capture;
  const cudaError_t error = check_launch(stream, capture);
  if (error != cudaSuccess || !capture) {
    return error;
  }
  std::lock_guard<std::mutex> lock(captures().mutex);
  return invalidate(*capture, cudaErrorStreamCaptureUnsupported);
}

cudaError_t check_wait(Stream& stream) {
  const cudaError_t error = check_not_captured(stream);
  return error != cudaSuccess ? error : check_unsafe_call();
}

cudaError_t check_wait(int device) {
  if (none_active()) {
    return cudaSuccess;
  }
  Captures& all = captures();
  std::lock_guard<std::mutex> lock(all.mutex);
  cudaError_t error = cudaSuccess;
  for (const auto& [stream, capture] : all.by_stream) {
    if (stream->device == device) {
      invalidate(*capture, cudaErrorStreamCaptureUnsupported);
      error = cudaErrorStreamCaptureUnsupported;
    }
  }
  return error;
}

cudaError_t check_wait(Event& event) {
  const CapturedPoint point = event.captured();
  if (point.capture) {
    std::lock_guard<std::mutex> lock(captures().mutex);
    invalidate(*point.capture, cudaErrorCapturedEvent);
    return cudaErrorCapturedEvent;
  }
  return check_unsafe_call();
}

bool add_to_capture(Stream& stream, Task& task) {
  if (none_active()) {
    return false;
  }
  Captures& all = captures();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto capture = all.of(stream);
  if (capture) {
    capture->add(stream, std::move(task));
  }
  return capture != nullptr;
}

CapturedPoint captured_point(Stream& stream) {
  if (none_active()) {
    return {};
  }
  Captures& all = captures();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto capture = all.of(stream);
  return capture ? CapturedPoint{capture, capture->of(stream)}
                 : CapturedPoint{};
}

cudaError_t wait_in_capture(Stream& stream, Event& event, bool& is_done) {
  const CapturedPoint point = event.captured();
  is_done = point.capture != nullptr || !none_active();
  if (!is_done) {
    return cudaSuccess;
  }
  const bool was_recorded = event.recorded();
  Captures& all = captures();
  std::lock_guard<std::mutex> lock(all.mutex);
  auto own = all.of(stream);
  if (!point.capture) {
    is_done = own != nullptr;
    return own && was_recorded
               ? invalidate(*own, cudaErrorStreamCaptureIsolation)
               : cudaSuccess;
  }
  if (point.capture->has_ended) {
    return own ? invalidate(*own, cudaErrorCapturedEvent)
               : cudaErrorCapturedEvent;
  }
  if (is_legacy(stream)) {
    return invalidate(*point.capture, cudaErrorStreamCaptureImplicit);
  }
  if (own && own != point.capture) {
    invalidate(*own, cudaErrorStreamCaptureMerge);
    return invalidate(*point.capture, cudaErrorStreamCaptureMerge);
  }
  if (!point.capture->is_valid) {
    return cudaErrorStreamCaptureInvalidated;
  }
  all.by_stream[&stream] = point.capture;
  point.capture->join(stream, point.progress);
  return cudaSuccess;
}

}  // namespace simcuda
