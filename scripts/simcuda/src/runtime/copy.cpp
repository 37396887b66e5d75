#include "copy.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "capture.h"
#include "memory.h"
#include "timing.h"
#include "zeros.h"

namespace simcuda {
namespace {

using Clock = std::chrono::steady_clock;

// One direction of one device's connection to the host.
struct Engine {
  std::mutex mutex;
  Clock::time_point free_at;
  std::atomic<uint64_t> bytes{0};
};

enum Direction { HostToDevice, DeviceToHost };

Engine& engine(int device, Direction direction) {
  static auto* engines = new std::array<std::array<Engine, 2>, 16>;
  return (*engines)[static_cast<size_t>(device)][direction];
}

// Moves the bytes at the end of the time that they take, the latest possible.
void transfer(Engine& engine, void* to, const void* from, size_t bytes) {
  const uint64_t bandwidth = config().copy_bandwidth;
  if (bandwidth > 0) {
    const auto takes = std::chrono::nanoseconds(static_cast<int64_t>(
        1e9 * static_cast<double>(bytes) / static_cast<double>(bandwidth)));
    std::lock_guard<std::mutex> lock(engine.mutex);
    engine.free_at = std::max(engine.free_at, Clock::now()) + takes;
    std::this_thread::sleep_until(engine.free_at);
  }
  std::memcpy(to, from, bytes);
}

// Queues the copy, whole or in pieces as the schedule says. `keep` lives until
// the last piece is done.
Mark queue(Stream& on, Engine& engine, void* to, const void* from, size_t bytes,
           const std::shared_ptr<void>& keep) {
  const bool split = config().schedule == Schedule::Split;
  const size_t pieces = split ? std::min<size_t>(bytes, 4) : 1;
  Mark last;
  for (size_t i = 0; i < pieces; ++i) {
    const size_t begin = bytes * i / pieces;
    const size_t end = bytes * (i + 1) / pieces;
    auto* piece_to = static_cast<char*>(to) + begin;
    const auto* piece_from = static_cast<const char*>(from) + begin;
    last = on.enqueue({i == 0 ? TaskKind::Copy : TaskKind::CopyRest,
                       [&engine, piece_to, piece_from, n = end - begin, keep] {
                         transfer(engine, piece_to, piece_from, n);
                       }});
  }
  return last;
}

bool kind_fits(cudaMemcpyKind kind, bool from_device, bool to_device) {
  switch (kind) {
    case cudaMemcpyDefault:
      return true;
    case cudaMemcpyHostToHost:
      return !from_device && !to_device;
    case cudaMemcpyHostToDevice:
      return !from_device && to_device;
    case cudaMemcpyDeviceToHost:
      return from_device && !to_device;
    case cudaMemcpyDeviceToDevice:
      return from_device && to_device;
  }
  return false;
}

void upload(void* to, const void* from, size_t bytes, const Range& source,
            Stream& on, Engine& engine) {
  engine.bytes += bytes;
  std::shared_ptr<std::vector<char>> staged;
  if (source.place == Place::Pageable) {
    const auto* begin = static_cast<const char*>(from);
    staged = std::make_shared<std::vector<char>>(begin, begin + bytes);
    from = staged->data();
  }
  queue(on, engine, to, from, bytes, staged);
}

void download(void* to, const void* from, size_t bytes, const Range& target,
              Stream& on, Engine& engine) {
  engine.bytes += bytes;
  const Mark done = queue(on, engine, to, from, bytes, nullptr);
  if (target.place == Place::Pageable) {
    done.wait();
  }
}

// In virtual time: moves nothing. Pageable memory holds the host up until the
// copy is done, unless the driver can stage all of it.
void cross(Part direction, void* to, size_t bytes, const Range& host,
           Stream& on, Engine& engine) {
  constexpr size_t kStaged = 64 << 10;  // CUDA's API synchronization behavior
  engine.bytes += bytes;
  const bool page_locked = host.place == Place::PageLocked;
  const bool out = direction == Part::DeviceToHost;
  const Mark done = on.enqueue(
      {TaskKind::Copy, {}, copy_cost(direction, bytes, page_locked)});
  if (out) {
    write_zeros(to, bytes);
  }
  if (!page_locked && (out || bytes > kStaged)) {
    done.wait();
  }
}

}  // namespace

cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                 Stream& on) {
  if (bytes == 0) {
    return cudaSuccess;
  }
  const Range target = find_range(to, bytes);
  const Range source = find_range(from, bytes);
  const bool to_device = target.place == Place::Device;
  const bool from_device = source.place == Place::Device;
  if (!kind_fits(kind, from_device, to_device) || !target.holds(to, bytes) ||
      !source.holds(from, bytes)) {
    return cudaErrorInvalidValue;
  }
  if (target.place == Place::Pageable || source.place == Place::Pageable) {
    if (const cudaError_t illegal = check_not_captured(on)) {
      return illegal;  // the host would have to wait
    }
  }
  if (timed()) {
    timing::wait_for(std::max(source.ready, target.ready));
  }
  if (from_device && to_device) {
    // Without access to each other, devices copy through the host.
    const bool same = source.device == target.device;
    on.enqueue({TaskKind::Copy,
                [to, from, bytes] { std::memmove(to, from, bytes); },
                same ? traffic_cost(2 * bytes, "copy")
                     : copy_cost(Part::DeviceToHost, bytes, true)});
  } else if (timed() && to_device) {
    cross(Part::HostToDevice, to, bytes, source, on,
          engine(target.device, HostToDevice));
  } else if (timed() && from_device) {
    cross(Part::DeviceToHost, to, bytes, target, on,
          engine(source.device, DeviceToHost));
  } else if (to_device) {
    upload(to, from, bytes, source, on, engine(target.device, HostToDevice));
  } else if (from_device) {
    download(to, from, bytes, target, on, engine(source.device, DeviceToHost));
  } else {
    on.tail().wait();
    std::memmove(to, from, bytes);
  }
  return cudaSuccess;
}

Copied copied_bytes(int device) {
  return {engine(device, HostToDevice).bytes.load(),
          engine(device, DeviceToHost).bytes.load()};
}

}  // namespace simcuda
