#include <ATen/cuda/detail/LMSDeviceSharing.h>

#include <ATen/cuda/detail/LMSCudaCaptures.h>
#include <ATen/cuda/detail/LMSDevice.h>
#include <ATen/cuda/detail/LMSHostLedger.h>
#include <ATen/cuda/detail/LMSSettings.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace at::cuda::lms {
namespace {

constexpr uint64_t kLedgerOfCard = 0x3164'7261'6353'4d4c; // "LMScard1"
constexpr std::chrono::milliseconds kTick{100}; // between two looks
constexpr std::chrono::milliseconds kPollOfOthers{10}; // while they give way
constexpr uint64_t kLongestWaitForOthers = 60'000; // milliseconds
constexpr size_t kSlicePart = 16; // of the card, that is given at a time
constexpr size_t kFallPart = 16; // of the card, that makes a look worth it

uint64_t now_ms() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(
          std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

static_assert(Sharer::kNumbers <= SharedRecords::kMostNumbers);

// Beside the ledger of the host's memory, one for each card. None for a card
// that does not say which one it is.
std::vector<std::string> ledgers_of_card(const cudaUUID_t& uuid) {
  std::string ending = ".card-";
  bool is_known = false;
  for (const char byte : uuid.bytes) {
    std::array<char, 3> digits{};
    (void)std::snprintf(
        digits.data(), digits.size(), "%02x", static_cast<uint8_t>(byte));
    ending += digits.data();
    is_known = is_known || byte != 0;
  }
  std::vector<std::string> files;
  for (const std::string& file : HostLedger::default_files()) {
    if (is_known) {
      files.push_back(file + ending);
    }
  }
  return files;
}

// The thread that looks around, for all devices.
class Watcher {
 public:
  static Watcher& get() {
    static auto* watcher = new Watcher(); // leaked: stopped at exit
    return *watcher;
  }

  void add(Sharing& sharing) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_stopped_ ||
        std::find(watched_.begin(), watched_.end(), &sharing) !=
            watched_.end()) {
      return;
    }
    if (!thread_.joinable()) {
      thread_ = std::thread([this] { run(); });
      // Before CUDA goes away.
      (void)std::atexit(Sharing::stop_all);
    }
    watched_.push_back(&sharing);
  }

  void stop() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (std::exchange(is_stopped_, true) || !thread_.joinable()) {
        return;
      }
    }
    wakes_.notify_all();
    thread_.join();
    for (Sharing* sharing : watched_) {
      sharing->finish();
    }
  }

  bool is_stopped() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return is_stopped_;
  }

 private:
  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!wakes_.wait_for(lock, kTick, [this] { return is_stopped_; })) {
      const auto watched = watched_;
      lock.unlock();
      for (Sharing* sharing : watched) {
        sharing->look_around();
      }
      lock.lock();
    }
  }

  std::mutex mutex_; // no other is taken under it
  std::condition_variable wakes_;
  std::thread thread_;
  std::vector<Sharing*> watched_;
  bool is_stopped_ = false;
};

} // namespace

void Sharing::open() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (records_) {
    return;
  }
  cudaDeviceProp card{};
  C10_CUDA_CHECK(cudaGetDeviceProperties(&card, device_.index()));
  total_ = card.totalGlobalMem;
  records_ = std::make_unique<SharedRecords>(
      ledgers_of_card(card.uuid), kLedgerOfCard, Sharer::kNumbers);
  records_->claim(own_.numbers().data());
}

void Sharing::start() {
  open();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!records_->is_shared()) {
      return;
    }
  }
  try {
    Watcher::get().add(*this);
  } catch (const std::system_error& error) {
    device_.world().warn("LMS does not share the card: ", error);
  }
}

void Sharing::stop_all() {
  if (!Settings::get().is_forked_child()) { // there the thread is not
    Watcher::get().stop();
  }
}

void Sharing::finish() {
  if (giving_.valid()) {
    giving_.wait();
  }
}

size_t Sharing::reserved() {
  const Lock lock(device_.mutex());
  return device_.map().layout().reserved();
}

size_t Sharing::storages() {
  const Lock lock(device_.mutex());
  const auto& managed = device_.pager().books.stats.managed_bytes[kAll];
  return device_.map().unmanaged() + static_cast<size_t>(managed.current);
}

// --- what others see of this process ---

// Whether it has run operators since the last look, or the device has not done
// what was queued then.
bool Sharing::is_busy() {
  const Lock lock(device_.mutex());
  Books& books = device_.pager().books;
  if (operators_ != operators_seen_ || books.contention.are_pins() ||
      working_.load() > 0 || may_be_captures()) {
    operators_seen_ = operators_;
    is_work_known_ = false;
    return true;
  }
  if (!std::exchange(is_work_known_, true)) {
    work_ = device_.world().streams().all_queued();
  }
  work_ = books.draining.not_happened(work_);
  return !work_.empty();
}

void Sharing::write_down(bool is_busy) {
  const size_t reserved = Settings::get().active() ? this->reserved() : 0;
  const uint64_t now = now_ms();
  const std::lock_guard<std::mutex> lock(mutex_);
  own_.reserved = reserved;
  own_.is_giving = givers_.load() > 0 ? 1 : 0;
  own_.seen_ms = now;
  if (is_busy) {
    own_.used_ms = now;
    own_.kept = 0;
  }
  if (now >=
      std::min(own_.used_ms + Sharers::kRest, asked_ms_ + Sharers::kWant)) {
    own_.goal = 0;
  }
  records_->write(own_.numbers().data());
}

void Sharing::note_growth(size_t reserved) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (records_ && Settings::get().active()) {
    own_.reserved = reserved;
    records_->write(own_.numbers().data());
  }
}

bool Sharing::is_at_rest() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return now_ms() >= own_.used_ms + Sharers::kRest;
}

Sharers Sharing::others() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Sharer> all;
  if (records_) {
    records_->visit_others([&all](const uint64_t* numbers) {
      all.push_back(Sharer::from(numbers));
    });
  }
  return {total_, own_, all, now_ms()};
}

// --- asking ---

void Sharing::want(size_t growth) {
  const size_t storages = this->storages();
  write_down(/*is_busy=*/true);
  const size_t goal = others().goal(growth, storages + growth);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    own_.goal = goal;
    asked_ms_ = now_ms();
  }
  write_down(/*is_busy=*/true);
}

// The want is not forgotten yet.
void Sharing::want_on() {
  const std::lock_guard<std::mutex> lock(mutex_);
  asked_ms_ = now_ms();
}

void Sharing::want_no_more() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    own_.goal = 0;
  }
  write_down(/*is_busy=*/true);
}

bool Sharing::ask(size_t growth, size_t free, const Patience& patience) {
  const Counted counted = working();
  const uint64_t begin = now_ms();
  uint64_t give_up = begin + patience.with_others;
  uint64_t hopeless = begin + patience.with_none;
  size_t least_taken = std::numeric_limits<size_t>::max();
  bool has_asked = false;
  while (device_.limit().free_on_card() < free) {
    const Sharers others = this->others();
    const uint64_t now = now_ms();
    const bool is_given =
        others.is_any_giving() || others.taken() < least_taken;
    give_up = is_given ? now + patience.with_others : give_up;
    least_taken = std::min(least_taken, others.taken());
    if (others.is_any_giving() || others.obtainable(Sharers::kNearRest) > 0) {
      hopeless = now + patience.with_none;
    }
    if (others.is_alone() ||
        now >= std::min({hopeless, give_up, begin + kLongestWaitForOthers})) {
      if (has_asked) {
        want_no_more();
      }
      return false;
    }
    if (!std::exchange(has_asked, true)) {
      want(growth);
    }
    want_on();
    // The host waits because the memory is another process's.
    std::this_thread::sleep_for(kPollOfOthers);
  }
  return true;
}

// --- giving way ---

void Sharing::look_around() noexcept {
  try {
    // Otherwise its calls would make a context on device 0.
    const c10::cuda::CUDAGuard guard(device_.index());
    const BesideCaptures beside;
    write_down(is_busy());
    const Sharers others = this->others();
    are_others_.store(others.are_any(), std::memory_order_relaxed);
    const bool is_giving = giving_.valid() &&
        giving_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
    if (!is_giving && Settings::get().active()) {
      answer(others);
    }
  } catch (const std::exception& error) {
    device_.world().warn("LMS could not share the card: ", error);
  }
}

void Sharing::answer(const Sharers& others) {
  const size_t taken = others.taken() - others.obtainable(Sharers::kLongRest);
  const bool has_fallen = taken + total_ / kFallPart < most_taken_;
  most_taken_ = has_fallen ? taken : std::max(most_taken_, taken);
  if (has_fallen) {
    device_.limit().look_soon();
  }
  const bool is_at_rest = this->is_at_rest();
  device_.limit().set_share(is_at_rest ? std::nullopt : others.bound());
  if (is_at_rest && others.is_any_in_want() && is_asked()) {
    giving_ = std::async(std::launch::async, [this] { give_way(); });
  }
}

// Whether there is something to give, for somebody who misses it.
bool Sharing::is_asked() {
  const size_t missing = others().missing(device_.limit().free_on_card());
  const std::lock_guard<std::mutex> lock(mutex_);
  return missing > 0 && own_.reserved > own_.kept;
}

void Sharing::give_way() noexcept {
  try {
    const Counted counted = giving_way();
    const c10::cuda::CUDAGuard guard(device_.index());
    const BesideCaptures beside;
    const bool had_one_segment = device_.consolidation().has_one_segment();
    while (give_some()) {
    }
    if (had_one_segment && !device_.consolidation().has_one_segment()) {
      // When memory comes back, it comes as one segment.
      device_.pager().books.note_shortage();
    }
  } catch (const std::exception& error) {
    device_.world().warn("LMS could not give way to others: ", error);
  }
}

// A slice at a time, so that others take it while the next one leaves. False if
// it was the last one.
bool Sharing::give_some() {
  const size_t missing = others().missing(device_.limit().free_on_card());
  if (missing == 0 || !is_at_rest() || Watcher::get().is_stopped()) {
    return false;
  }
  const size_t before = reserved();
  device_.room().shrink(
      {std::min(missing, total_ / kSlicePart), 0}, Scope::kForOthers);
  const size_t after = reserved();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    own_.kept = after < before ? 0 : after;
  }
  write_down(/*is_busy=*/false);
  return after < before;
}

} // namespace at::cuda::lms
