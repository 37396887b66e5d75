#include <ATen/cuda/detail/LMSCudaStreams.h>

#include <ATen/cuda/detail/LMSCudaCaptures.h>
#include <ATen/cuda/detail/LMSCudaEvent.h>
#include <c10/cuda/CUDAGuard.h>

#include <atomic>
#include <utility>

namespace at::cuda::lms {
namespace {

// How c10 numbers a stream that it has not made: by its handle.
bool is_of_another_library(c10::cuda::CUDAStream stream) {
  return stream.id() == reinterpret_cast<c10::StreamId>(stream.stream());
}

uint64_t number_of_this_thread() {
  static std::atomic<uint64_t> last{0};
  static thread_local const uint64_t number = ++last;
  return number;
}

// Which of the streams with the handle the calling thread means.
uint64_t owner_of(cudaStream_t stream) {
  return stream == cudaStreamPerThread ? number_of_this_thread() : 0;
}

} // namespace

void Streams::meet(c10::cuda::CUDAStream stream) {
  if (stream.stream() && !is_of_another_library(stream)) {
    own_.insert(stream.stream());
  }
}

void Streams::meet_current() {
  meet(c10::cuda::getCurrentCUDAStream(device_));
}

bool Streams::is_external(cudaStream_t stream) const {
  return stream != nullptr && own_.count(stream) == 0;
}

bool Streams::is_out_of_reach(cudaStream_t stream) const {
  return is_external(stream) &&
      stream != c10::cuda::getCurrentCUDAStream(device_).stream();
}

void Streams::note_work(cudaStream_t stream) noexcept {
  if (!is_external(stream) || is_captured(stream)) {
    return;
  }
  Event& end = ends_[stream][owner_of(stream)];
  if (!has_happened(end)) {
    c10::cuda::CUDAGuard guard(device_);
    if (cudaStreamWaitEvent(stream, end.get(), 0) != cudaSuccess) {
      (void)cudaGetLastError(); // recording on it will report it
      wait_on_host(end);
    }
  }
  end = event_or_drained(device_, stream);
}

Events Streams::queued(cudaStream_t stream) noexcept {
  Events events;
  const auto add = [&events](Event event) {
    if (event) {
      events.push_back(std::move(event));
    }
  };
  if (!is_external(stream)) {
    if (!is_captured(stream)) {
      add(event_or_drained(device_, stream));
    }
    return events;
  }
  if (!is_out_of_reach(stream)) {
    note_work(stream);
  }
  for (const auto& [owner, end] : ends_[stream]) {
    add(end);
  }
  return events;
}

Events Streams::all_queued() noexcept {
  Events events = queued(nullptr);
  for (cudaStream_t stream : own_) {
    append(events, queued(stream));
  }
  for (const auto& [stream, ends] : ends_) {
    for (const auto& [owner, end] : ends) {
      append(events, Events{end});
    }
  }
  return events;
}

} // namespace at::cuda::lms
