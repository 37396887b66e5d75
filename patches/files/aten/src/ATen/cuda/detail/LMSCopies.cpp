#include <ATen/cuda/detail/LMSDevice.h>

#include <ATen/cuda/detail/LMSSettings.h>
#include <ATen/record_function.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <utility>

// Note [Order of copies and operators]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// No operation here blocks the host (pageable host memory and the `original`
// policy apart). The order is kept on the device:
//  - a page-out copy waits for what is queued so far on every stream that used
//    the storage. Nobody waits for it but the next owner of the memory, see
//    Note [Handing memory over];
//  - a page-in copy waits for the home stream, whose earlier work may still
//    use the memory, for what the memory was handed over with, and for the
//    page-out copy of the same bytes;
//  - each stream waits for it before its first use of the bytes.
// The copies of one direction share a stream, so they are in order.

namespace at::cuda::lms {
namespace {

// Overwritten memory in chaos: bytes that make no number in a floating type.
constexpr int kChaosPattern = 0xFF;

cudaStream_t make_copy_stream() {
  cudaStream_t stream = nullptr;
  C10_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

// Queues the copy of a storage's bytes between its device memory and the host.
void copy_pieces(
    const HostPieces& host,
    void* device,
    size_t bytes,
    cudaMemcpyKind kind,
    cudaStream_t stream) {
  const bool is_out = kind == cudaMemcpyDeviceToHost;
  auto* at = static_cast<char*>(device);
  for (HostRange left : host) {
    left.bytes = std::min(left.bytes, bytes); // less in the last one
    bytes -= left.bytes;
    while (left.bytes > 0) {
      const size_t part = std::min(left.bytes, bytes_to_border(left.begin));
      C10_CUDA_CHECK(cudaMemcpyAsync(
          is_out ? left.begin : at,
          is_out ? at : left.begin,
          part,
          kind,
          stream));
      at += part;
      left = {left.begin + part, left.bytes - part};
    }
  }
}

// What profilers show beside a copy.
std::vector<c10::IValue> bytes_of(const ManagedStorage& record) {
  return {static_cast<int64_t>(record.bytes)};
}

} // namespace

// What work on the memory outside its home stream is queued so far.
Handover::Events Device::uses_of(const ManagedStorage* record) {
  Handover::Events events;
  for (cudaStream_t user : record->users) {
    if (user != record->home) {
      const Handover::Events uses = streams_.queued(user);
      events.append(uses.begin(), uses.end());
    }
  }
  if (record->arrival && !record->is_used_on(record->home)) {
    events.push_back(record->arrival);
  }
  return events;
}

// Queues the copy to `host` in its place among the streams' work.
Event Device::copy_out(ManagedStorage* record, const HostPieces& host) {
  RECORD_USER_SCOPE_WITH_INPUTS("lms::page_out", bytes_of(*record));
  c10::cuda::CUDAGuard on_device(index_);
  if (!out_stream_) {
    out_stream_ = make_copy_stream();
  }
  // Users have waited for the arrival; if the home stream has not, it is here.
  for (const auto& events : {streams_.queued(record->home), uses_of(record)}) {
    for (const Event& event : events) {
      wait_event(out_stream_, event);
    }
  }
  try {
    Event end;
    if (record->host.empty()) {
      Event begin = record_timed_event(index_, out_stream_);
      copy_pieces(
          host,
          record->memory.get(),
          record->bytes,
          cudaMemcpyDeviceToHost,
          out_stream_);
      end = record_timed_event(index_, out_stream_);
      times_.add(Activity::kPageOut, std::move(begin), end);
    }
    if (Settings::get().chaos()) {
      C10_CUDA_CHECK(cudaMemsetAsync(
          record->memory.get(), kChaosPattern, record->bytes, out_stream_));
      end = event_or_drained(index_, out_stream_);
    }
    return end;
  } catch (...) {
    // The copy may be running, and its source and target are about to be let
    // go.
    drain(out_stream_);
    throw;
  }
}

// Queues the copy of the bytes into `memory`, fresh from the home stream's
// pool, after the events.
Event Device::copy_into(
    void* memory,
    const ManagedStorage* record,
    const Handover::Events& events,
    Activity activity) {
  const bool is_move = activity == Activity::kMove;
  RECORD_USER_SCOPE_WITH_INPUTS(
      is_move ? "lms::move" : "lms::page_in", bytes_of(*record));
  c10::cuda::CUDAGuard on_device(index_);
  cudaStream_t& stream = is_move ? move_stream_ : in_stream_;
  if (!stream) {
    stream = make_copy_stream();
  }
  for (const auto& before : {streams_.queued(record->home), events}) {
    for (const Event& event : before) {
      wait_event(stream, event);
    }
  }
  try {
    Event begin = record_timed_event(index_, stream);
    if (is_move) {
      C10_CUDA_CHECK(cudaMemcpyAsync(
          memory,
          record->memory.get(),
          record->bytes,
          cudaMemcpyDeviceToDevice,
          stream));
    } else {
      copy_pieces(
          record->host, memory, record->bytes, cudaMemcpyHostToDevice, stream);
    }
    Event end = record_timed_event(index_, stream);
    times_.add(activity, std::move(begin), end);
    return end;
  } catch (...) {
    drain(stream); // as above
    throw;
  }
}

} // namespace at::cuda::lms
