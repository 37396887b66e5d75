#include <ATen/cuda/detail/LMSOperatorRandom.h>

#include <ATen/core/enum_tag.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace at::cuda::lms {
namespace {

constexpr std::chrono::seconds kLongestWait{1};

// Of all devices: an operator need not say where it draws. Nobody holds the
// mutex while taking another one.
struct Draws {
  std::mutex mutex;
  std::condition_variable changed;
  int under_way = 0;
  uint64_t begun = 0; // so far
  bool is_again = false; // a thread is in a DrawAgainScope
};
Draws& draws() {
  static auto* all = new Draws(); // leaked: threads may outlive statics
  return *all;
}

// Of the calling thread, nested.
thread_local int own_draws = 0;
thread_local uint64_t own_ticket = 0; // of the outermost
thread_local int own_again = 0;

CUDAGeneratorImpl& default_generator(c10::DeviceIndex device) {
  return *check_generator<CUDAGeneratorImpl>(
      detail::getDefaultCUDAGenerator(device));
}

} // namespace

bool is_random(const c10::OperatorHandle& op) {
  return op.hasTag(at::Tag::nondeterministic_seeded);
}

Drawn begin_drawing(c10::DeviceIndex device) {
  CUDAGeneratorImpl& generator = default_generator(device);
  const std::lock_guard<std::mutex> lock(generator.mutex_);
  const uint64_t offset = generator.philox_offset_per_thread();
  return {generator.current_seed(), offset, offset};
}

std::optional<Drawn> end_drawing(const Drawn& begun, c10::DeviceIndex device) {
  Drawn now = begin_drawing(device);
  if (now.seed == begun.seed && now.begin == begun.begin) {
    return begun;
  }
  if (now.seed != begun.seed || now.begin < begun.begin) {
    return std::nullopt;
  }
  Draws& all = draws();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (own_draws == 0 || all.under_way > 1 || all.begun != own_ticket) {
    return std::nullopt;
  }
  now.begin = begun.begin;
  return now;
}

DrawScope::DrawScope(bool is_random)
    : is_counted_(is_random && own_again == 0) {
  if (!is_counted_ || own_draws++ > 0) {
    return;
  }
  Draws& all = draws();
  std::unique_lock<std::mutex> lock(all.mutex);
  all.changed.wait(lock, [&all] { return !all.is_again; });
  own_ticket = ++all.begun;
  if (all.under_way++ > 0) {
    own_ticket = 0; // never alone
  }
}

DrawScope::~DrawScope() {
  if (!is_counted_ || --own_draws > 0) {
    return;
  }
  Draws& all = draws();
  const std::lock_guard<std::mutex> lock(all.mutex);
  --all.under_way;
  all.changed.notify_all();
}

DrawAgainScope::DrawAgainScope(c10::DeviceIndex device, const Drawn& drawn)
    : device_(device), drawn_(drawn) {
  Generator again = detail::createCUDAGenerator(device);
  again.set_current_seed(drawn.seed);
  check_generator<CUDAGeneratorImpl>(again)->set_philox_offset_per_thread(
      drawn.begin);
  if (own_again == 0) {
    Draws& all = draws();
    std::unique_lock<std::mutex> lock(all.mutex);
    const bool is_free = all.changed.wait_for(lock, kLongestWait, [&all] {
      return !all.is_again && all.under_way <= (own_draws > 0 ? 1 : 0);
    });
    TORCH_CHECK_WITH(
        OutOfMemoryError,
        is_free,
        "Large Model Support has to draw random numbers again, but another "
        "thread has not ended to draw some.");
    all.is_again = true;
  }
  ++own_again;
  CUDAGeneratorImpl& generator = default_generator(device);
  const std::lock_guard<std::mutex> lock(generator.mutex_);
  before_ = generator.graphsafe_get_state();
  generator.graphsafe_set_state(again.getIntrusivePtr());
}

DrawAgainScope::~DrawAgainScope() {
  {
    CUDAGeneratorImpl& generator = default_generator(device_);
    const std::lock_guard<std::mutex> lock(generator.mutex_);
    generator.graphsafe_set_state(before_);
  }
  if (--own_again > 0) {
    return;
  }
  Draws& all = draws();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.is_again = false;
  all.changed.notify_all();
}

bool DrawAgainScope::is_the_same() const {
  return begin_drawing(device_).begin == drawn_.end;
}

bool draws_again() {
  return own_again > 0;
}

} // namespace at::cuda::lms
