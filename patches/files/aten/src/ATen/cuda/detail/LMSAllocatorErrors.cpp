#include <ATen/cuda/detail/LMSAllocatorErrors.h>

#include <c10/macros/Macros.h>

#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace at::cuda::lms {
namespace {

using c10::cuda::CUDACachingAllocator::CUDAAllocator;

// What observers are told.
struct Refusal {
  int64_t device;
  size_t bytes;
  size_t total;
  size_t free;
};

// Of the calling thread.
thread_local Uncaught uncaught = Uncaught::kNone;
thread_local int scopes = 0; // that it is inside of
thread_local std::optional<Refusal> last_refusal;
// What it gave up, neither retried nor reported yet.
thread_local std::optional<Refusal> given_up;

std::array<std::atomic<int64_t>, C10_COMPILE_TIME_MAX_GPUS> uncounted{};

std::mutex observers_mutex; // no other is taken under it
std::vector<OutOfMemoryObserver>& observers() {
  static auto* list = new std::vector<OutOfMemoryObserver>(); // leaked: they
  return *list; // may hold Python objects
}

std::atomic<int64_t>& uncounted_on(int64_t device) {
  return uncounted.at(static_cast<size_t>(device));
}

// Called by the native allocator, without its mutex.
void note_refusal(int64_t device, size_t bytes, size_t total, size_t free) {
  if (scopes > 0) {
    ++uncounted_on(device);
    last_refusal = Refusal{device, bytes, total, free};
  }
}

} // namespace

RetryScope::RetryScope() {
  if (scopes++ == 0) {
    given_up.reset();
  }
}

RetryScope::~RetryScope() {
  --scopes;
}

UncaughtScope::UncaughtScope(Uncaught shortages)
    : outer_(std::exchange(uncaught, shortages)) {}

UncaughtScope::~UncaughtScope() {
  uncaught = outer_;
}

Uncaught uncaught_shortages() {
  return uncaught;
}

void give_up_request() {
  given_up = std::exchange(last_refusal, std::nullopt);
  report_error();
}

void report_error() {
  if (scopes > 0 || !given_up) {
    return;
  }
  const Refusal error = *given_up;
  given_up.reset();
  --uncounted_on(error.device);
  std::vector<OutOfMemoryObserver> told;
  {
    std::lock_guard<std::mutex> lock(observers_mutex);
    told = observers();
  }
  for (const auto& observer : told) {
    observer(error.device, error.bytes, error.total, error.free);
  }
}

int64_t uncounted_errors(c10::DeviceIndex device) {
  return uncounted_on(device);
}

void forget_uncounted_errors(c10::DeviceIndex device) {
  uncounted_on(device) = 0;
}

void watch_refusals(CUDAAllocator& native) {
  native.attachOutOfMemoryObserver(note_refusal);
}

void add_observer(CUDAAllocator& native, OutOfMemoryObserver observer) {
  {
    std::lock_guard<std::mutex> lock(observers_mutex);
    observers().push_back(observer);
  }
  native.attachOutOfMemoryObserver(
      [observer = std::move(observer)](
          int64_t device, size_t bytes, size_t total, size_t free) {
        if (scopes == 0) {
          observer(device, bytes, total, free);
        }
      });
}

} // namespace at::cuda::lms
