#include <ATen/cuda/detail/LMSCudaWorld.h>

#include <ATen/cuda/detail/LMSAllocator.h>
#include <ATen/cuda/detail/LMSDevice.h>
#include <ATen/cuda/detail/LMSCorePageTable.h>
#include <ATen/cuda/detail/LMSCudaCaptures.h>
#include <ATen/cuda/detail/LMSHostDisk.h>
#include <ATen/cuda/detail/LMSOperatorTouched.h>
#include <ATen/cuda/detail/LMSSettings.h>
#include <ATen/record_function.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

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

const char* name_of(Copy::Kind kind) { // in profilers
  return kind == Copy::Kind::kIn ? "lms::page_in"
      : kind == Copy::Kind::kOut ? "lms::page_out"
                                 : "lms::move";
}

Activity activity_of(Copy::Kind kind) {
  return kind == Copy::Kind::kIn ? Activity::kPageIn
      : kind == Copy::Kind::kOut ? Activity::kPageOut
                                 : Activity::kMove;
}

void queue(const Copy& copy, cudaStream_t stream) {
  const PageEntry& page = copy.page;
  void* here = page.memory.get();
  switch (copy.kind) {
    case Copy::Kind::kIn:
      copy_pieces(
          page.host, copy.memory, page.bytes, cudaMemcpyHostToDevice, stream);
      break;
    case Copy::Kind::kOut:
      copy_pieces(*copy.host, here, page.bytes, cudaMemcpyDeviceToHost, stream);
      break;
    case Copy::Kind::kMove:
      C10_CUDA_CHECK(cudaMemcpyAsync(
          copy.memory, here, page.bytes, cudaMemcpyDeviceToDevice, stream));
      break;
  }
}

// Has a thread of CUDA's run the transfer, which may call nothing of CUDA. It
// keeps the transfer alive until then.
void queue_on(
    cudaStream_t stream,
    const std::shared_ptr<DiskTransfer>& transfer) {
  using Owner = std::shared_ptr<DiskTransfer>;
  auto owner = std::make_unique<Owner>(transfer);
  const auto run = [](void* data) {
    const std::unique_ptr<Owner> owned(static_cast<Owner*>(data));
    Disk::run(**owned);
  };
  C10_CUDA_CHECK(cudaLaunchHostFunc(stream, run, owner.get()));
  // CUDA has it until it runs.
  [[maybe_unused]] const Owner* given = owner.release();
}

} // namespace

DeviceMemory CudaWorld::allocate(
    const PageEntry& page,
    bool is_ahead,
    Events& pending) {
  void* memory = Allocator::get().allocate_for_copy(
      index_, page.bytes, page.home, is_ahead, pending);
  return DeviceMemory(memory, FreeMemory{this});
}

void CudaWorld::free(void* memory) noexcept {
  Allocator::get().native().raw_delete(memory);
}

size_t CudaWorld::block_size_for(size_t bytes) const {
  return lms::block_size_for(bytes);
}

size_t CudaWorld::growth_for(size_t bytes) const {
  return lms::growth_for(bytes);
}

cudaStream_t CudaWorld::stream_for(const Copy& copy) {
  cudaStream_t& stream = copy.kind == Copy::Kind::kOut ? out_stream_
      : copy.kind == Copy::Kind::kMove                 ? move_stream_
      : copy.is_urgent                                 ? urgent_stream_
                                                       : in_stream_;
  if (!stream) {
    stream = make_copy_stream();
  }
  return stream;
}

Event CudaWorld::copy(const Copy& copy) {
  RECORD_USER_SCOPE_WITH_INPUTS(
      name_of(copy.kind),
      std::vector<c10::IValue>{static_cast<int64_t>(copy.page.bytes)});
  c10::cuda::CUDAGuard on_device(index_);
  cudaStream_t stream = stream_for(copy);
  for (const Event& event : copy.after) {
    wait_event(stream, event);
  }
  try {
    return copy_on(stream, copy);
  } catch (...) {
    // The copy may be running, and its source and target are about to be let
    // go.
    drain(stream);
    throw;
  }
}

Event CudaWorld::copy_on(cudaStream_t stream, const Copy& copy) {
  Event end;
  if (copy.kind != Copy::Kind::kOut || copy.host) {
    Event begin = record_timed_event(index_, stream);
    queue(copy, stream);
    end = record_timed_event(index_, stream);
    if (Trace* report = Trace::report_of(index_)) {
      report->add_copy(copy, begin, end);
    }
    times_.add(activity_of(copy.kind), std::move(begin), end, copy.page.bytes);
  }
  if (copy.kind == Copy::Kind::kOut && traits().evicts_all) {
    C10_CUDA_CHECK(cudaMemsetAsync(
        copy.page.memory.get(), kChaosPattern, copy.page.bytes, stream));
    end = event_or_drained(index_, stream);
  }
  return end;
}

void CudaWorld::note_departure(
    const PageEntry& page,
    Departure how,
    size_t room) {
  if (Trace* report = Trace::report_of(index_)) {
    report->add_departure(page, how, room);
  }
}

Events CudaWorld::queued(Stream stream) noexcept {
  return streams_.queued(stream);
}

bool CudaWorld::may_be_another(Stream stream) const {
  return streams_.is_external(stream);
}

void CudaWorld::wait(
    Stream stream,
    const Events& events,
    std::optional<Activity> counted) {
  c10::cuda::CUDAGuard guard(index_);
  ++waits_;
  Event begin = counted ? record_timed_event(index_, stream) : nullptr;
  for (const Event& event : events) {
    wait_event(stream, event);
  }
  if (counted) {
    Event end = record_timed_event(index_, stream);
    if (Trace* report = Trace::report_of(index_)) {
      report->add_wait(stream, events, counted, begin, end);
    }
    times_.add(*counted, std::move(begin), std::move(end));
  }
}

void CudaWorld::mark(Stream stream, uint64_t mark) {
  c10::cuda::CUDAGuard guard(index_);
  times_.add_mark(mark, record_timed_event(index_, stream));
}

bool CudaWorld::has_happened(const Event& event) const {
  return lms::has_happened(event);
}

bool CudaWorld::wait_on_host(const Event& event) noexcept {
  return lms::wait_on_host(event);
}

uint32_t CudaWorld::gain(const PageEntry& page) {
  const auto& record = static_cast<const ManagedStorage&>(page);
  return record.device.recipes().gain(record);
}

bool CudaWorld::give_up(PageEntry& page, bool at_any_cost) {
  ManagedStorage* record = managed(&page);
  return record->device.recipes().give_up(record, at_any_cost);
}

HostPieces CudaWorld::allocate_on_host(
    size_t bytes,
    HostMemory::Claim claim,
    HostMemory::Wait& wait) {
  return HostMemory::get().allocate(bytes, index_, claim, wait);
}

void CudaWorld::free_on_host(HostPieces pieces, Event ready) {
  if (Trace* report = Trace::report_of(index_)) {
    report->add_host_free(pieces);
  }
  HostMemory::get().free(std::move(pieces), std::move(ready));
}

bool CudaWorld::finish(HostMemory::Wait& wait) {
  Trace* report = wait.is_needed() ? Trace::report_of(index_) : nullptr;
  if (!report || is_capturing()) {
    return HostMemory::get().finish(wait);
  }
  // The stream stands still from when it gets here, and nothing else is queued
  // on it until the host goes on.
  cudaStream_t stream = current_stream(index_);
  const Event begin = record_timed_event(index_, stream);
  const bool has_waited = HostMemory::get().finish(wait);
  report->add_wait(
      stream, {}, std::nullopt, begin, record_timed_event(index_, stream));
  return has_waited;
}

bool CudaWorld::has_disk() const {
  const auto disk = Disk::chosen();
  return disk && disk->is_usable();
}

std::shared_ptr<DiskSpace> CudaWorld::allocate_on_disk(size_t bytes) {
  const auto disk = Disk::chosen();
  return disk ? disk->allocate(bytes) : nullptr;
}

void CudaWorld::transfer(
    const std::shared_ptr<DiskTransfer>& queued,
    const Event& after) {
  const bool is_write = queued->kind == DiskTransfer::Kind::kWrite;
  RECORD_USER_SCOPE_WITH_INPUTS(
      is_write ? "lms::write_to_disk" : "lms::read_from_disk",
      std::vector<c10::IValue>{static_cast<int64_t>(queued->bytes)});
  c10::cuda::CUDAGuard on_device(index_);
  cudaStream_t& stream = is_write ? write_stream_ : read_stream_;
  if (!stream) {
    stream = make_copy_stream();
  }
  if (after) {
    wait_event(stream, after);
  }
  try {
    Event begin = record_timed_event(index_, stream);
    queue_on(stream, queued);
    queued->end = record_timed_event(index_, stream);
    if (Trace* report = Trace::report_of(index_)) {
      report->add_transfer(*queued, begin, queued->end);
    }
    times_.add(
        is_write ? Activity::kWriteDisk : Activity::kReadDisk,
        std::move(begin),
        queued->end,
        queued->bytes);
  } catch (...) {
    drain(stream); // it may be running, and its memory is about to be let go
    throw;
  }
}

const Traits& CudaWorld::traits() const {
  const PolicyKind& now = Settings::get().policy();
  return now.make == policy_.make ? now.traits : policy_.traits;
}

std::string CudaWorld::reason_of(const std::exception& error) const {
  const auto* known = dynamic_cast<const c10::Error*>(&error);
  return known ? known->what_without_backtrace() : error.what();
}

// Once for each reason.
void CudaWorld::warn(const char* what, const std::exception& error) noexcept {
  static std::mutex mutex;
  static std::set<std::string> known;
  const std::lock_guard<std::mutex> lock(mutex);
  if (known.insert(what + reason_of(error)).second) {
    TORCH_WARN(what, reason_of(error));
  }
}

} // namespace at::cuda::lms
