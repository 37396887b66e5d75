#include "shared_card.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "config.h"
#include "visible.h"

namespace simcuda {
namespace {

constexpr int kProcesses = 16;
constexpr int kMutex = kProcesses;  // the lock after those of the processes

// Bytes by device. What a process has counts while it holds the lock of its
// place; the kernel drops that when the process ends, however it ends.
using Place = std::array<std::atomic<uint64_t>, 16>;

[[noreturn]] void fail(const std::string& name, const char* why) {
  std::fprintf(stderr, "simcuda: SIMCUDA_SHARED=%s cannot be used: %s\n",
               name.c_str(), why);
  std::fflush(stderr);
  _exit(2);
}

class Card {
 public:
  explicit Card(const std::string& name) {
    file_ = open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    constexpr size_t kBytes = kProcesses * sizeof(Place);
    if (file_ < 0 || ftruncate(file_, kBytes) != 0) {
      fail(name, std::strerror(errno));
    }
    void* mapped =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (mapped == MAP_FAILED) {
      fail(name, std::strerror(errno));
    }
    places_ = static_cast<Place*>(mapped);
    while (own_ < kProcesses && !lock(own_, F_SETLK, F_WRLCK)) {
      ++own_;
    }
    if (own_ == kProcesses) {
      fail(name, "as many processes as there can be use it");
    }
    for (auto& bytes : places_[own_]) {  // of whose place it was
      bytes = 0;
    }
  }

  bool note(int device, uint64_t bytes) {
    lock(kMutex, F_SETLKW, F_WRLCK);
    const uint64_t taken = others(device);
    const bool fits = taken + bytes <= config().capacity;
    if (fits) {
      places_[own_].at(static_cast<size_t>(device)) = bytes;
    }
    lock(kMutex, F_SETLK, F_UNLCK);
    return fits;
  }

  uint64_t others(int device) {
    uint64_t bytes = 0;
    for (int place = 0; place < kProcesses; ++place) {
      if (place != own_ && is_locked(place)) {
        bytes += places_[place].at(static_cast<size_t>(device));
      }
    }
    return bytes;
  }

 private:
  static struct flock request_for(int place, short kind) {
    struct flock request {};
    request.l_type = kind;
    request.l_whence = SEEK_SET;
    request.l_start = place;
    request.l_len = 1;
    return request;
  }

  bool lock(int place, int command, short kind) {
    struct flock request = request_for(place, kind);
    int result = 0;
    do {
      result = fcntl(file_, command, &request);
    } while (result == -1 && errno == EINTR);
    return result == 0;
  }

  bool is_locked(int place) {
    struct flock request = request_for(place, F_WRLCK);
    return fcntl(file_, F_GETLK, &request) == 0 && request.l_type != F_UNLCK;
  }

  int file_ = -1;
  int own_ = 0;
  Place* places_ = nullptr;
};

Card& shared() {
  static Card* card = new Card(config().shared);
  return *card;
}

}  // namespace

bool shares_card() {
  return !config().shared.empty();
}

bool note_on_card(int device, uint64_t bytes) {
  return !shares_card() || shared().note(physical_device(device), bytes);
}

uint64_t taken_by_others(int device) {
  return shares_card() ? shared().others(physical_device(device)) : 0;
}

}  // namespace simcuda
