#include "comm.h"

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <thread>

namespace simnccl {
namespace {

constexpr size_t kPage = 4096;  // bytes; the control block has whole ones
// Ranks that wait for each other for so long, in real time, are said to.
constexpr std::chrono::seconds kPatience{60};

}  // namespace

Shared::Shared(const std::string& name, int ranks) : ranks_(ranks) {
  const auto count = static_cast<size_t>(ranks);
  control_size_ =
      (sizeof(Control) + count * sizeof(Place) + kPage - 1) / kPage * kPage;
  size_ = control_size_ + count * kChunk + count * count * sizeof(Mailbox);
  const int file = shm_open(name.c_str(), O_RDWR | O_CREAT, S_IRUSR | S_IWUSR);
  if (file < 0 || ftruncate(file, static_cast<off_t>(size_)) != 0) {
    throw std::runtime_error("no shared memory for a communicator");
  }
  memory_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory_ == MAP_FAILED) {
    throw std::runtime_error("no address space for a communicator");
  }
  if (control().joined.fetch_add(1) + 1 == ranks) {
    shm_unlink(name.c_str());  // everybody has it
  }
}

Shared::~Shared() {
  munmap(memory_, size_);
}

char* Shared::slot(int rank) const {
  return static_cast<char*>(memory_) + control_size_ +
         static_cast<size_t>(rank) * kChunk;
}

Shared::Place& Shared::place(int rank) const {
  return reinterpret_cast<Place*>(&control() + 1)[rank];
}

Shared::Mailbox& Shared::mailbox(int from, int to) const {
  auto* boxes = reinterpret_cast<Mailbox*>(slot(ranks_));
  return boxes[from * ranks_ + to];
}

void Shared::barrier() {
  Control& control = this->control();
  const uint32_t generation = control.generation.load();
  if (control.arrived.fetch_add(1) + 1 == ranks_) {
    control.arrived.store(0);
    control.generation.fetch_add(1);
  } else {
    wait([&] { return control.generation.load() != generation; });
  }
}

void Shared::wait(const std::function<bool()>& condition) const {
  constexpr int kYields = 100;  // before it sleeps
  for (int i = 0; !condition(); ++i) {
    if (is_aborted_.load()) {
      throw Aborted();
    }
    if (i < kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

Comm::Comm(const std::string& name, int ranks, int rank)
    : name(name), ranks(ranks), rank(rank), shared(name, ranks) {
  cudaGetDevice(&device);
  shared.place(rank).process.store(getpid());
}

bool Comm::shares_process() const {
  for (int other = 0; other < ranks; ++other) {
    if (other != rank && shared.place(other).process.load() == getpid()) {
      return true;
    }
  }
  return false;
}

int64_t Comm::meet(int64_t time) {
  const uint64_t meeting = ++meetings_;
  const auto arrival = [&](int of) -> Shared::Arrival& {
    return shared.place(of).arrivals[meeting % 2];
  };
  arrival(rank).time = time;
  arrival(rank).meeting.store(meeting);
  const auto until = std::chrono::steady_clock::now() + kPatience;
  bool said = false;
  for (int other = 0; other < ranks; ++other) {
    try {
      shared.wait([&] {
        if (!said && std::chrono::steady_clock::now() > until) {
          said = true;
          std::fprintf(stderr, "simnccl: rank %d waits for rank %d\n", rank,
                       other);
        }
        return arrival(other).meeting.load() == meeting;
      });
    } catch (const Aborted&) {
      return time;
    }
    time = std::max(time, arrival(other).time);
  }
  return time;
}

void Comm::run_in_turn(uint64_t ticket, const std::function<void()>& work) {
  try {
    shared.wait([&] { return served_.load() == ticket; });
    work();
  } catch (const Aborted&) {  // NOLINT(bugprone-empty-catch)
    // Whoever gave it up knows that the numbers are worth nothing.
  }
  served_.store(ticket + 1);
}

ncclRedOp_t Comm::add_scale(Scale scale) {
  const std::lock_guard<std::mutex> lock(mutex_);
  int reduction = ncclNumOps;
  while (scales_.count(reduction) > 0) {
    ++reduction;
  }
  scales_[reduction] = scale;
  return static_cast<ncclRedOp_t>(reduction);
}

void Comm::remove_scale(ncclRedOp_t reduction) {
  const std::lock_guard<std::mutex> lock(mutex_);
  scales_.erase(reduction);
}

Scale Comm::scale_of(ncclRedOp_t reduction) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return reduction < ncclNumOps ? Scale{} : scales_.at(reduction);
}

std::string fresh_name() {
  static std::atomic<int> count{0};
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  return "/simnccl-" + std::to_string(getpid()) + "-" + std::to_string(now) +
         "-" + std::to_string(count.fetch_add(1));
}

}  // namespace simnccl
