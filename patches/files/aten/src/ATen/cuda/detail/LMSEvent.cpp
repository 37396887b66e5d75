#include <ATen/cuda/detail/LMSEvent.h>

#include <mutex>
#include <vector>

namespace at::cuda::lms {
namespace {

// Free events by device. Leaked on purpose: at exit CUDA may be gone before
// static destructors run.
class EventPool {
 public:
  static EventPool& get() {
    static auto* pool = new EventPool();
    return *pool;
  }

  Event acquire(c10::DeviceIndex device) {
    cudaEvent_t raw = nullptr;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto& free = free_for(device);
      if (!free.empty()) {
        raw = free.back();
        free.pop_back();
      }
    }
    if (!raw) {
      C10_CUDA_CHECK(cudaEventCreateWithFlags(&raw, cudaEventDisableTiming));
    }
    return {raw, [this, device](cudaEvent_t event) {
              std::lock_guard<std::mutex> lock(mutex_);
              free_for(device).push_back(event);
            }};
  }

 private:
  std::vector<cudaEvent_t>& free_for(c10::DeviceIndex device) {
    const size_t index = static_cast<uint8_t>(device);
    if (index >= free_.size()) {
      free_.resize(index + 1);
    }
    return free_[index];
  }

  std::mutex mutex_;
  std::vector<std::vector<cudaEvent_t>> free_;
};

} // namespace

Event record_event(c10::DeviceIndex device, cudaStream_t stream) {
  auto event = EventPool::get().acquire(device);
  C10_CUDA_CHECK(cudaEventRecord(event.get(), stream));
  return event;
}

void wait_event(cudaStream_t stream, const Event& event) {
  if (event) {
    C10_CUDA_CHECK(cudaStreamWaitEvent(stream, event.get(), 0));
  }
}

bool has_happened(const Event& event) {
  if (!event) {
    return true;
  }
  const cudaError_t status = cudaEventQuery(event.get());
  if (status != cudaSuccess) {
    (void)cudaGetLastError(); // "not ready" is an answer, not a failure
  }
  return status == cudaSuccess;
}

} // namespace at::cuda::lms
