#pragma once

#include <ATen/cuda/detail/LMSCudaStreams.h>
#include <ATen/cuda/detail/LMSCudaTimes.h>
#include <ATen/cuda/detail/LMSCoreWorld.h>
#include <ATen/cuda/detail/LMSWaits.h>

namespace at::cuda::lms {

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
// The copies of one direction share a stream, so they are in order. But what is
// needed now, or soon and against the plan, does not wait for what is fetched
// for later uses: the copies of both take turns.
//
// What is written to disk and read from it is a function of the host's in a
// stream: it waits for the copies before it, and has an event for its end. CUDA
// may run such functions one at a time.

// A device of CUDA's, its memory that of the caching allocator.
class CudaWorld final : public World {
 public:
  CudaWorld(DeviceIndex index, const PolicyKind& policy)
      : index_(index), policy_(policy), streams_(index) {}

  DeviceMemory allocate(const PageEntry& page, bool is_ahead, Events& pending)
      override;
  void free(void* memory) noexcept override;
  size_t block_size_for(size_t bytes) const override;
  size_t growth_for(size_t bytes) const override;
  Event copy(const Copy& copy) override;
  void note_departure(const PageEntry& page, Departure how, size_t room)
      override;
  Events queued(Stream stream) noexcept override;
  bool may_be_another(Stream stream) const override;
  void wait(
      Stream stream,
      const Events& events,
      std::optional<Activity> counted) override;
  void mark(Stream stream, uint64_t mark) override;
  bool has_happened(const Event& event) const override;
  bool wait_on_host(const Event& event) noexcept override;
  uint32_t gain(const PageEntry& page) override;
  bool give_up(PageEntry& page, bool at_any_cost) override;
  HostPieces allocate_on_host(
      size_t bytes,
      HostMemory::Claim claim,
      HostMemory::Wait& wait) override;
  void free_on_host(HostPieces pieces, Event ready) override;
  bool finish(HostMemory::Wait& wait) override;
  bool has_disk() const override;
  std::shared_ptr<DiskSpace> allocate_on_disk(size_t bytes) override;
  void transfer(const std::shared_ptr<DiskTransfer>& queued, const Event& after)
      override;
  const Traits& traits() const override;
  bool bounds_lead() const override {
    return are_waits_watched();
  }
  std::string reason_of(const std::exception& error) const override;
  void warn(const char* what, const std::exception& error) noexcept override;

  Streams& streams() {
    return streams_;
  }
  const Streams& streams() const {
    return streams_;
  }
  Times& times() {
    return times_;
  }
  // How often a stream was made to wait.
  uint64_t waits() const {
    return waits_;
  }

 private:
  cudaStream_t stream_for(const Copy& copy);
  Event copy_on(cudaStream_t stream, const Copy& copy);

  const DeviceIndex index_;
  const PolicyKind& policy_;
  Streams streams_;
  Times times_;
  uint64_t waits_ = 0;
  cudaStream_t in_stream_ = nullptr; // page-in copies, in order
  cudaStream_t urgent_stream_ = nullptr; // urgent ones, in order
  cudaStream_t out_stream_ = nullptr; // page-out copies, in order
  cudaStream_t move_stream_ = nullptr; // copies within the device, in order
  cudaStream_t read_stream_ = nullptr; // reads from disk, in order
  cudaStream_t write_stream_ = nullptr; // writes to disk, in order
};

} // namespace at::cuda::lms
