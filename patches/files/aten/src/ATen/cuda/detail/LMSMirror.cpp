#include <ATen/cuda/detail/LMSDevice.h>

#include <ATen/cuda/detail/LMSAllocator.h>
#include <ATen/cuda/detail/LMSDeviceLock.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace at::cuda::lms {
namespace {

Segment as_segment(
    size_t size,
    const void* stream,
    bool is_private,
    bool is_expandable) {
  Segment segment;
  segment.size = size;
  segment.stream = reinterpret_cast<uintptr_t>(stream);
  segment.is_private = is_private;
  segment.is_expandable = is_expandable;
  return segment;
}

void add(Layout& layout, const SegmentInfo& info) {
  layout.add_segment(
      info.address,
      as_segment(
          info.total_size,
          info.stream,
          info.owner_private_pool_id != MempoolId_t{0, 0},
          info.is_expandable));
  uintptr_t address = info.address;
  for (const auto& block : info.blocks) {
    if (block.active) {
      layout.add_block(address, block.size);
    }
    address += block.size;
  }
}

} // namespace

// Reads the caching allocator's present layout, and follows its trace events
// from then on. The tracker cannot be detached again.
void Device::mirror_allocator() {
  auto& native = Allocator::get().native();
  static std::once_flag attached;
  std::call_once(attached, [&native] {
    native.attachAllocatorTraceTracker([](const TraceEntry& entry) {
      if (Device* device = Device::find(entry.device_)) {
        device->on_trace(entry);
      }
    });
  });
  const auto snapshot = snapshot_of(native);
  Lock lock(*this);
  layout_.clear();
  layout_.set_max_split(AllocatorConfig::max_split_size());
  for (const auto& segment : snapshot.segments) {
    if (segment.device == index_) {
      add(layout_, segment);
    }
  }
  for (const auto& entry : backlog_) {
    apply(entry);
  }
  backlog_.clear();
  mirrored_ = true;
}

// Called with the allocator's mutex held; may only take LMS's own.
void Device::on_trace(const TraceEntry& entry) {
  if (entry.action_ == TraceEntry::FREE_REQUESTED) {
    return; // the block stays taken until its streams are done
  }
  Lock lock(*this);
  if (mirrored_) {
    apply(entry);
  } else if (entry.action_ == TraceEntry::SNAPSHOT) {
    backlog_.clear(); // what came before is in the snapshot
  } else {
    backlog_.push_back(entry);
  }
}

// See Note [Handing memory over].
void Device::take_over(const TraceEntry& entry) {
  CurrentRequest* request = CurrentRequest::get();
  if (!request || !request->is_for_page) {
    peak_unmanaged_ =
        std::max(peak_unmanaged_, layout_.allocated() - page_bytes_);
  }
  const auto [segment, block] = layout_.find(entry.addr_);
  auto events = handover_.take(entry.addr_, block ? block->size : entry.size_);
  if (events.empty()) {
    return;
  }
  if (request) {
    request->pending.append(events.begin(), events.end());
    return;
  }
  // The allocation did not come through the layer, so nobody else would wait.
  // The host may not, with the allocator's mutex.
  const auto home =
      reinterpret_cast<cudaStream_t>(segment ? segment->stream : 0);
  c10::cuda::CUDAGuard guard(index_);
  for (const Event& event : events) {
    C10_CUDA_CHECK_WARN(cudaStreamWaitEvent(home, event.get(), 0));
  }
}

void Device::apply(const TraceEntry& entry) {
  switch (entry.action_) {
    case TraceEntry::ALLOC:
      layout_.add_block(entry.addr_, block_size_for(entry.size_));
      take_over(entry);
      break;
    case TraceEntry::FREE_COMPLETED:
      note_free(entry.addr_);
      layout_.remove_block(entry.addr_);
      break;
    case TraceEntry::SEGMENT_ALLOC:
    case TraceEntry::SEGMENT_MAP:
      layout_.add_segment(
          entry.addr_,
          as_segment(
              entry.size_,
              entry.stream_,
              is_private(entry, Allocator::get().routes_to_pools()),
              entry.action_ == TraceEntry::SEGMENT_MAP));
      CurrentRequest::note_growth();
      break;
    case TraceEntry::SEGMENT_FREE:
    case TraceEntry::SEGMENT_UNMAP:
      note_lost_segment(entry.addr_);
      layout_.remove_segment(entry.addr_, entry.size_);
      break;
    case TraceEntry::OOM:
      note_failure(entry);
      break;
    default:
      break;
  }
}

} // namespace at::cuda::lms
