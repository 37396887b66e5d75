#include <ATen/cuda/detail/LMSCoreContention.h>

#include <array>
#include <limits>

namespace at::cuda::lms {
namespace {

constexpr size_t kDevices = size_t{std::numeric_limits<uint8_t>::max()} + 1;
constexpr std::chrono::seconds kLongestWait{10};

// What the calling thread has pinned and not given back. A pin that another
// thread gives back makes it inexact, which can only make wait_for_others wait
// in vain, for a while, or not at all.
int64_t& pins_of_this_thread(DeviceIndex device) {
  static thread_local std::array<int64_t, kDevices> pins{};
  return pins.at(static_cast<uint8_t>(device));
}

} // namespace

void Contention::note_pins(size_t count) {
  pins_ += static_cast<int64_t>(count);
  take_on(count);
}

void Contention::note_unpins(size_t count) noexcept {
  if (count > 0) {
    pins_ -= static_cast<int64_t>(count);
    disown(count);
    note_change();
  }
}

void Contention::disown(size_t count) const {
  pins_of_this_thread(device_) -= static_cast<int64_t>(count);
}

void Contention::take_on(size_t count) const {
  pins_of_this_thread(device_) += static_cast<int64_t>(count);
}

void Contention::begin_letting_go() noexcept {
  ++letting_go_;
}

void Contention::end_letting_go() noexcept {
  --letting_go_;
  note_change();
}

void Contention::note_change() noexcept {
  ++generation_;
  if (waiters_.load() > 0) {
    changed_.notify_all();
  }
}

Contention::Waiting::Waiting(Contention& contention)
    : contention_(contention), own_(pins_of_this_thread(contention.device_)) {
  contention_.begin_waiting(own_);
}

Contention::Waiting::~Waiting() {
  contention_.waiting_pins_ -= own_;
}

void Contention::begin_waiting(int64_t own) {
  waiting_pins_ += own;
  changed_.notify_all(); // others may wait for this thread's pins
}

bool Contention::others_hold_pins() {
  const Lock lock(mutex_);
  return letting_go_.load() > 0 || pins_ > pins_of_this_thread(device_);
}

bool Contention::wait_for_others(
    uint64_t seen,
    GiveUp& give_up,
    const std::function<void()>& help) {
  using Clock = std::chrono::steady_clock;
  if (!give_up) {
    give_up = Clock::now() + kLongestWait;
  }
  ++waiters_;
  const int64_t own = pins_of_this_thread(device_);
  {
    const Lock lock(mutex_);
    begin_waiting(own);
  }
  // The host waits because the memory it needs is in use by operators that
  // other threads are launching right now, or by collectives under way. It
  // looks every so often, since a change may be announced without the mutex.
  // With no pins of its own it waits for threads that wait too: the first of
  // them to give up moves on.
  bool changed = false;
  bool is_hopeful = true;
  while (!changed && is_hopeful && Clock::now() < *give_up) {
    help();
    Lock lock(mutex_);
    changed = generation() != seen;
    const int64_t hopeless = own == 0 ? 0 : waiting_pins_;
    is_hopeful = letting_go_.load() > 0 || pins_ > hopeless;
    if (!changed && is_hopeful) {
      lock.wait_for(changed_, std::chrono::milliseconds{1});
    }
  }
  {
    const Lock lock(mutex_);
    waiting_pins_ -= own;
  }
  --waiters_;
  return changed;
}

} // namespace at::cuda::lms
