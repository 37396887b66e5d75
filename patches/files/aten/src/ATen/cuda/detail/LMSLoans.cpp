#include <ATen/cuda/detail/LMSDevice.h>

#include <ATen/cuda/detail/LMSAllocator.h>
#include <ATen/cuda/detail/LMSDeviceLock.h>
#include <ATen/cuda/detail/LMSSettings.h>

#include <algorithm>

// Note [Lending memory to other streams]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A segment belongs to one stream, so an operator of another one may run out
// of memory though much is free. It gets memory of that segment then: its
// stream waits for what is queued on the segment's, which may still use the
// memory. When it goes back, its next owner waits for the borrower: a storage's
// record knows its users, and of other memory, such as an operator's scratch,
// the loan is noted until it is freed.
//
// The home stream of such a storage is the segment's. Once LMS is off, the
// allocator must not give its memory away while the borrower uses it: it is
// told so as of a stream named by Tensor.record_stream.

namespace at::cuda::lms {

// The stream whose memory a request shall get: that of the one segment where it
// has taken what others would need.
cudaStream_t Device::lender_for(size_t bytes, cudaStream_t stream) {
  const auto asking = reinterpret_cast<uintptr_t>(stream);
  Lock lock(*this);
  if (stream) {
    streams_.meet_current();
  }
  const auto one = layout_.segments().find(one_segment_);
  return one != layout_.segments().end() && bytes > kSmallSize &&
          !layout_.has_gap(block_size_for(bytes), asking) && !may_grow(bytes)
      ? reinterpret_cast<cudaStream_t>(one->second.stream)
      : stream;
}

// The streams that have memory, but for one.
std::vector<cudaStream_t> Device::other_streams(cudaStream_t stream) {
  std::vector<cudaStream_t> others;
  Lock lock(*this);
  for (const auto& [address, segment] : layout_.segments()) {
    const auto other = reinterpret_cast<cudaStream_t>(segment.stream);
    if (!segment.is_private && other != stream &&
        std::find(others.begin(), others.end(), other) == others.end()) {
      others.push_back(other);
    }
  }
  return others;
}

// The memory is the lender's, for work on another stream, which has to wait for
// what is added to `pending`.
void Device::lend(
    const void* memory,
    cudaStream_t lender,
    cudaStream_t borrower,
    Handover::Events& pending) {
  Lock lock(*this);
  const Handover::Events uses = streams_.queued(lender);
  pending.append(uses.begin(), uses.end());
  loans_[reinterpret_cast<uintptr_t>(memory)] = borrower;
}

// A record sees to the memory from now on.
void Device::take_over_loan(ManagedStorage* record) {
  const auto loan =
      loans_.find(reinterpret_cast<uintptr_t>(record->memory.get()));
  if (loan != loans_.end()) {
    record->users.push_back(loan->second);
    record->recorded.push_back(
        c10::cuda::getStreamFromExternal(loan->second, index_));
    loans_.erase(loan);
  }
}

// The memory that the bytes are about to come to may be another stream's than
// the last.
void Device::note_home(ManagedStorage* record, const void* memory) {
  const Segment* segment =
      layout_.find(reinterpret_cast<uintptr_t>(memory)).first;
  const auto home =
      segment ? reinterpret_cast<cudaStream_t>(segment->stream) : record->home;
  if (home != record->home) {
    record->recorded.push_back(
        c10::cuda::getStreamFromExternal(record->home, index_));
    record->home = home;
  }
}

// The allocator gets the block back and has given it to nobody yet.
void Device::note_free(uintptr_t address) {
  const auto [segment, block] = layout_.find(address);
  if (!segment || !block) {
    return;
  }
  // What was allocated by code that is no operator may have been used by it.
  const auto home = reinterpret_cast<cudaStream_t>(segment->stream);
  if (Settings::get().active() && !streams_.is_out_of_reach(home)) {
    streams_.note_work(home);
  }
  const auto loan = loans_.find(address);
  if (loan == loans_.end()) {
    return;
  }
  handover_.put(address, block->size, streams_.queued(loan->second));
  loans_.erase(loan);
}

} // namespace at::cuda::lms
