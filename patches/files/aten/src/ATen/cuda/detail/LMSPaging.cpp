#include <ATen/cuda/detail/LMSDevice.h>

#include <ATen/cuda/detail/LMSAllocator.h>
#include <ATen/cuda/detail/LMSDeviceLock.h>
#include <ATen/cuda/detail/LMSHostMemory.h>
#include <c10/cuda/CUDAGuard.h>

#include <utility>

// Note [Order of copies and operators]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// No operation here blocks the host (pageable host memory apart: CUDA copies
// it synchronously). The order is kept on the device:
//  - a page-out copy waits for everything queued so far on the storage's home
//    stream and on every other stream that used it;
//  - the home stream then waits for the copy. The memory goes back to the
//    allocator at once: whoever gets it next works on the home stream;
//  - a page-in copy waits for the home stream, whose earlier work may still
//    use the memory, and for the page-out copy of the same bytes;
//  - the home stream and each stream about to use the bytes wait for it.
// The copies of one direction share a stream, so they are in order.

namespace at::cuda::lms {
namespace {

cudaStream_t make_copy_stream() {
  cudaStream_t stream = nullptr;
  C10_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

// A copy may be running when a later step fails. The host waits for it, since
// its source and target are about to be let go.
void drain(cudaStream_t stream) {
  if (cudaStreamSynchronize(stream) != cudaSuccess) {
    (void)cudaGetLastError(); // the first error is the one to report
  }
}

} // namespace

void Device::attach_memory(ManagedStorage* record, c10::DataPtr memory) {
  auto [segment, block] =
      layout_.find(reinterpret_cast<uintptr_t>(memory.get()));
  record->block = block;
  if (block) {
    block->page = record;
  }
  record->memory = std::move(memory);
  record->state = ManagedStorage::State::kResident;
  set_evictable(record);
  if (record->pins > 0) {
    record->show_address();
  }
}

c10::DataPtr Device::detach_memory(ManagedStorage* record) {
  if (record->block) {
    record->block->page = nullptr;
    record->block = nullptr;
  }
  record->evictable = false;
  return std::move(record->memory);
}

// Queues the copy to `host` in its place among the streams' work.
Event Device::copy_out(ManagedStorage* record, void* host) {
  c10::cuda::CUDAGuard guard(index_);
  if (!out_stream_) {
    out_stream_ = make_copy_stream();
  }
  wait_event(out_stream_, record_event(index_, record->home));
  for (cudaStream_t user : record->users) {
    wait_event(out_stream_, record_event(index_, user));
  }
  try {
    C10_CUDA_CHECK(cudaMemcpyAsync(
        host,
        record->memory.get(),
        record->bytes,
        cudaMemcpyDeviceToHost,
        out_stream_));
    Event departure = record_event(index_, out_stream_);
    wait_event(record->home, departure);
    return departure;
  } catch (...) {
    drain(out_stream_);
    throw;
  }
}

// Returns false, with the storage as it was, if the bytes cannot leave.
bool Device::page_out(ManagedStorage* record, Freed& freed) {
  void* host = HostMemory::get().allocate(record->bytes);
  if (!host) {
    last_failure_ = "host memory for paged-out storages is spent";
    return false;
  }
  try {
    record->departure = copy_out(record, host);
  } catch (const c10::Error& error) {
    HostMemory::get().free(host, nullptr);
    last_failure_ = error.what_without_backtrace();
    return false;
  }
  record->host = host;
  record->users.clear();
  record->arrival = nullptr;
  freed.add(detach_memory(record));
  record->state = ManagedStorage::State::kPagedOut;
  const auto bytes = static_cast<int64_t>(record->bytes);
  stats_.paged_out_bytes.add(bytes);
  stats_.paged_out.copies += 1;
  stats_.paged_out.bytes += bytes;
  stats_.reclaimed += 1;
  stats_.reclaimed_bytes += bytes;
  return true;
}

// Queues the copy into `memory`, fresh from the home stream's pool.
Event Device::copy_in(ManagedStorage* record, void* memory) {
  c10::cuda::CUDAGuard guard(index_);
  if (!in_stream_) {
    in_stream_ = make_copy_stream();
  }
  wait_event(in_stream_, record_event(index_, record->home));
  wait_event(in_stream_, record->departure);
  try {
    C10_CUDA_CHECK(cudaMemcpyAsync(
        memory,
        record->host,
        record->bytes,
        cudaMemcpyHostToDevice,
        in_stream_));
    Event arrival = record_event(index_, in_stream_);
    wait_event(record->home, arrival);
    return arrival;
  } catch (...) {
    drain(in_stream_);
    throw;
  }
}

// The storage is pinned by the caller, so that it stays once it is here.
void Device::page_in(ManagedStorage* record) {
  {
    Lock lock(*this);
    lock.wait(arrived_, [record] {
      return record->state != ManagedStorage::State::kArriving;
    });
    if (record->state == ManagedStorage::State::kResident) {
      return;
    }
    record->state = ManagedStorage::State::kArriving;
  }
  c10::DataPtr memory;
  try {
    memory = Allocator::get().allocate_on(index_, record->bytes, record->home);
    Lock lock(*this);
    record->arrival = copy_in(record, memory.get());
    HostMemory::get().free(record->host, record->arrival);
    record->host = nullptr;
    record->departure = nullptr;
    attach_memory(record, std::move(memory));
    const auto bytes = static_cast<int64_t>(record->bytes);
    stats_.paged_out_bytes.remove(bytes);
    stats_.paged_in.copies += 1;
    stats_.paged_in.bytes += bytes;
  } catch (...) {
    {
      Lock lock(*this);
      record->state = ManagedStorage::State::kPagedOut;
    }
    arrived_.notify_all();
    throw;
  }
  arrived_.notify_all();
}

std::vector<Page*> Device::all_evictable() const {
  std::vector<Page*> pages;
  for (ManagedStorage* record : records_) {
    if (record->evictable) {
      pages.push_back(record);
    }
  }
  return pages;
}

size_t Device::reclaim(const Request& request, Scope scope) noexcept {
  if (is_capturing()) {
    return 0;
  }
  Freed freed(*this);
  size_t count = 0;
  try {
    Lock lock(*this);
    const auto victims = scope == Scope::kWindow
        ? policy_->choose_window(layout_, request)
        : scope == Scope::kSegments
        ? policy_->choose_segments(layout_, request.bytes)
        : all_evictable();
    for (Page* page : victims) {
      count += page_out(static_cast<ManagedStorage*>(page), freed) ? 1 : 0;
    }
  } catch (const std::exception& error) {
    // No memory even for the lists of victims: what has left has left.
    TORCH_WARN_ONCE("LMS could not reclaim memory: ", error.what());
  }
  return count;
}

bool Device::must_reclaim(size_t bytes) {
  Lock lock(*this);
  return is_limited_ && layout_.reserved() + growth_for(bytes) > limit_;
}

void Device::bring_all_back() {
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages;
  {
    Lock lock(*this);
    storages.reserve(records_.size());
    for (ManagedStorage* record : records_) {
      storages.push_back(record->storage);
    }
  }
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> alive;
  Storages raw;
  for (const auto& weak : storages) {
    if (auto storage = weak.lock()) {
      raw.push_back(storage.get());
      alive.push_back(std::move(storage));
    }
  }
  // All are made resident before the first is let go, so that a failure
  // leaves everything managed.
  const Pins pins = enter(raw, /*stream=*/nullptr, /*adopt=*/false);
  try {
    for (c10::StorageImpl* storage : raw) {
      release(storage);
    }
  } catch (...) {
    leave(pins, raw);
    throw;
  }
  leave(pins);
}

} // namespace at::cuda::lms
