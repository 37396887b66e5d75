#include <ATen/cuda/detail/LMSDeviceMirror.h>

#include <ATen/cuda/detail/LMSAllocator.h>
#include <ATen/cuda/detail/LMSDevice.h>
#include <ATen/cuda/detail/LMSSettings.h>
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

void Mirror::start() {
  auto& native = Allocator::get().native();
  static std::once_flag attached;
  std::call_once(attached, [&native] {
    watch_refusals(native);
    native.attachAllocatorTraceTracker([](const TraceEntry& entry) {
      if (Device* device = Device::find(entry.device_)) {
        device->mirror().on_event(entry);
      }
    });
  });
  const auto snapshot = snapshot_of(native);
  const Lock lock(device_.mutex());
  Layout& layout = device_.map().layout();
  layout.clear();
  layout.set_max_split(AllocatorConfig::max_split_size());
  for (const auto& segment : snapshot.segments) {
    if (segment.device == device_.index()) {
      add(layout, segment);
    }
  }
  for (const auto& entry : backlog_) {
    apply(entry);
  }
  backlog_.clear();
  is_mirrored_ = true;
}

void Mirror::on_event(const TraceEntry& entry) {
  if (entry.action_ == TraceEntry::FREE_REQUESTED) {
    return; // the block stays taken until its streams are done
  }
  const Lock lock(device_.mutex());
  if (is_mirrored_) {
    apply(entry);
  } else if (entry.action_ == TraceEntry::SNAPSHOT) {
    backlog_.clear(); // what came before is in the snapshot
  } else {
    backlog_.push_back(entry);
  }
}

// See Note [Handing memory over].
void Mirror::note_allocation(const TraceEntry& entry) {
  CurrentRequest* request = CurrentRequest::get();
  if (!request || !request->is_for_page) {
    device_.map().note_unmanaged();
  }
  const auto [segment, block] = device_.map().layout().find(entry.addr_);
  auto events = device_.pager().books.draining.handover().take(
      entry.addr_, block ? block->size : entry.size_);
  if (events.empty()) {
    return;
  }
  if (request) {
    append(request->pending, events);
    return;
  }
  // The allocation did not come through the layer, so nobody else would wait.
  // The host may not, with the allocator's mutex.
  const auto home =
      reinterpret_cast<cudaStream_t>(segment ? segment->stream : 0);
  c10::cuda::CUDAGuard guard(device_.index());
  for (const Event& event : events) {
    C10_CUDA_CHECK_WARN(cudaStreamWaitEvent(home, event.get(), 0));
  }
}

// The allocator gets the block back and has given it to nobody yet.
void Mirror::note_free(const TraceEntry& entry) {
  const auto [segment, block] = device_.map().layout().find(entry.addr_);
  if (!segment || !block) {
    return;
  }
  // What was allocated by code that is no operator may have been used by it.
  Streams& streams = device_.world().streams();
  const auto home = reinterpret_cast<cudaStream_t>(segment->stream);
  if (Settings::get().active() && !streams.is_out_of_reach(home)) {
    streams.note_work(home);
  }
  device_.loans().end(entry.addr_, block->size);
}

void Mirror::apply(const TraceEntry& entry) {
  Layout& layout = device_.map().layout();
  switch (entry.action_) {
    case TraceEntry::ALLOC:
      layout.add_block(entry.addr_, block_size_for(entry.size_));
      note_allocation(entry);
      break;
    case TraceEntry::FREE_COMPLETED:
      note_free(entry);
      layout.remove_block(entry.addr_);
      break;
    case TraceEntry::SEGMENT_ALLOC:
    case TraceEntry::SEGMENT_MAP:
      layout.add_segment(
          entry.addr_,
          as_segment(
              entry.size_,
              entry.stream_,
              is_private(entry, Allocator::get().routes_to_pools()),
              entry.action_ == TraceEntry::SEGMENT_MAP));
      CurrentRequest::note_growth();
      device_.sharing().note_growth(layout.reserved());
      break;
    case TraceEntry::SEGMENT_FREE:
    case TraceEntry::SEGMENT_UNMAP:
      device_.consolidation().note_lost_segment(entry.addr_);
      layout.remove_segment(entry.addr_, entry.size_);
      break;
    case TraceEntry::OOM:
      device_.limit().note_failure(entry);
      break;
    default:
      break;
  }
}

} // namespace at::cuda::lms
