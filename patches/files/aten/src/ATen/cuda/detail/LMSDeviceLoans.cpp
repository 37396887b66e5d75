#include <ATen/cuda/detail/LMSDeviceLoans.h>

#include <ATen/cuda/detail/LMSDevice.h>
#include <ATen/cuda/detail/LMSOperatorWorkspace.h>

#include <algorithm>

namespace at::cuda::lms {

cudaStream_t Loans::lender_for(size_t bytes, cudaStream_t stream) {
  const auto asking = reinterpret_cast<uintptr_t>(stream);
  const Lock lock(device_.mutex());
  if (stream) {
    device_.world().streams().meet_current();
  }
  const MemoryMap& map = device_.map();
  const Segment* one = device_.consolidation().one_segment();
  return one && bytes > kSmallSize &&
          !map.layout().has_gap(
              device_.world().block_size_for(bytes), asking) &&
          !map.may_grow(bytes)
      ? reinterpret_cast<cudaStream_t>(one->stream)
      : stream;
}

cudaStream_t Loans::stream_apart() {
  const Lock lock(device_.mutex());
  if (!apart_) {
    apart_ = c10::cuda::getStreamFromPool(
        /*isHighPriority=*/false, device_.index());
    device_.world().streams().meet(*apart_);
  }
  return apart_->stream();
}

std::vector<cudaStream_t> Loans::other_streams(cudaStream_t stream) {
  std::vector<cudaStream_t> others;
  const Lock lock(device_.mutex());
  for (const auto& [address, segment] : device_.map().layout().segments()) {
    const auto other = reinterpret_cast<cudaStream_t>(segment.stream);
    if (!segment.is_private && other != stream &&
        std::find(others.begin(), others.end(), other) == others.end()) {
      others.push_back(other);
    }
  }
  return others;
}

void Loans::lend(
    const void* memory,
    cudaStream_t lender,
    cudaStream_t borrower,
    Events& pending) {
  const Lock lock(device_.mutex());
  append(pending, device_.world().queued(lender));
  const bool is_apart = apart_ && lender == apart_->stream();
  loans_[reinterpret_cast<uintptr_t>(memory)] = {borrower, is_apart};
}

void Loans::take_over(ManagedStorage* record) {
  const auto loan =
      loans_.find(reinterpret_cast<uintptr_t>(record->memory.get()));
  if (loan != loans_.end()) {
    record->add_user(loan->second.borrower);
    record->recorded.push_back(c10::cuda::getStreamFromExternal(
        loan->second.borrower, device_.index()));
    loans_.erase(loan);
  }
}

void Loans::end(uintptr_t address, size_t bytes) {
  const auto loan = loans_.find(address);
  if (loan != loans_.end()) {
    device_.pager().books.draining.handover().put(
        address, bytes, device_.world().queued(loan->second.borrower));
    if (loan->second.is_apart) {
      note_freed_workspace();
    }
    loans_.erase(loan);
  }
}

} // namespace at::cuda::lms
