#include <ATen/cuda/detail/LMSCudaEvent.h>

#include <ATen/cuda/detail/LMSCudaCaptures.h>
#include <c10/cuda/CUDAGuard.h>

#include <mutex>
#include <vector>

namespace at::cuda::lms {
namespace {

// Free events of one kind by device. Leaked on purpose: at exit CUDA may be
// gone before static destructors run.
class EventPool {
 public:
  static EventPool& plain() {
    static auto* pool = new EventPool(cudaEventDisableTiming);
    return *pool;
  }
  static EventPool& timed() {
    static auto* pool = new EventPool(cudaEventDefault);
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
      C10_CUDA_CHECK(cudaEventCreateWithFlags(&raw, flags_));
    }
    return {raw, [this, device](cudaEvent_t event) {
              std::lock_guard<std::mutex> lock(mutex_);
              free_for(device).push_back(event);
            }};
  }

 private:
  explicit EventPool(unsigned flags) : flags_(flags) {}

  std::vector<cudaEvent_t>& free_for(c10::DeviceIndex device) {
    const size_t index = static_cast<uint8_t>(device);
    if (index >= free_.size()) {
      free_.resize(index + 1);
    }
    return free_[index];
  }

  const unsigned flags_; // of cudaEventCreateWithFlags
  std::mutex mutex_;
  std::vector<std::vector<cudaEvent_t>> free_;
};

} // namespace

Event record_event(c10::DeviceIndex device, cudaStream_t stream) {
  auto event = EventPool::plain().acquire(device);
  C10_CUDA_CHECK(cudaEventRecord(event.get(), stream));
  return event;
}

Event record_timed_event(c10::DeviceIndex device, cudaStream_t stream) {
  c10::cuda::CUDAGuard guard(device);
  auto event = EventPool::timed().acquire(device);
  C10_CUDA_CHECK(cudaEventRecord(event.get(), stream));
  return event;
}

Event event_or_drained(c10::DeviceIndex device, cudaStream_t stream) noexcept {
  try {
    c10::cuda::CUDAGuard guard(device);
    return record_event(device, stream);
  } catch (const c10::Error&) {
    drain(stream);
    return {};
  }
}

void synchronize(cudaStream_t stream) {
  const BesideCaptures beside;
  C10_CUDA_CHECK(cudaStreamSynchronize(stream));
}

void drain(cudaStream_t stream) noexcept {
  const BesideCaptures beside;
  if (cudaStreamSynchronize(stream) != cudaSuccess) {
    (void)cudaGetLastError();
  }
}

double microseconds_between(const Event& begin, const Event& end) {
  const BesideCaptures beside;
  float milliseconds = 0;
  C10_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
  return 1e3 * static_cast<double>(milliseconds);
}

void wait_event(cudaStream_t stream, const Event& event) {
  if (event) {
    C10_CUDA_CHECK(cudaStreamWaitEvent(stream, event.get(), 0));
  }
}

void synchronize(const Event& event) {
  const BesideCaptures beside;
  if (event) {
    C10_CUDA_CHECK(cudaEventSynchronize(event.get()));
  }
}

bool wait_on_host(const Event& event) noexcept {
  const BesideCaptures beside;
  if (event && cudaEventSynchronize(event.get()) != cudaSuccess) {
    (void)cudaGetLastError();
    return false;
  }
  return true;
}

bool has_happened(const Event& event) {
  if (!event) {
    return true;
  }
  const BesideCaptures beside;
  const cudaError_t status = cudaEventQuery(event.get());
  if (status != cudaSuccess) {
    (void)cudaGetLastError(); // "not ready" is an answer, not a failure
  }
  return status == cudaSuccess;
}

} // namespace at::cuda::lms
