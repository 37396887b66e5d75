#include "timing.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <map>
#include <mutex>
#include <utility>

#include "card.h"
#include "config.h"
#include "driver_lock.h"
#include "memory.h"
#include "timeline.h"

namespace simcuda::timing {
namespace {

// Streams hold this much; then a launch blocks, as on a card.
constexpr size_t kDepth = 1024;
// What was announced and nobody does for so long, in real time, is given up.
constexpr std::chrono::seconds kPatience{60};

struct World {
  std::mutex mutex;
  DriverLock driver;
  std::condition_variable driver_changed;
  // The last device is the host, which has a stream if it has work of its own.
  Simulation simulation{config().devices + 1, card().sharing};
  int host_stream = -1;
  Time program = 0;  // the program's clock
  std::array<std::array<Time, kParts>, 16> busy{};
  Timeline timeline;
  // By communicator, where its last collective is: stream and number.
  std::map<const void*, std::pair<int, uint64_t>> collectives;

  World() {
    timeline.open(config().timeline);
    simulation.observer = [this](const Interval& interval) {
      if (interval.device == config().devices) {
        return;
      }
      busy[static_cast<size_t>(interval.device)]
          [static_cast<size_t>(interval.part)] += interval.end - interval.start;
      timeline.write(interval);
    };
  }
};

World& world() {
  static World* w = new World;
  return *w;
}

// One thread's clock. All functions need the world's lock.
class Clock {
 public:
  Time now(const World& w) {
    mine_ = std::max(mine_, w.program);
    return in_program_ ? w.program : mine_;
  }
  void advance_to(World& w, Time time) {
    Time& clock = in_program_ ? w.program : mine_;
    clock = std::max(now(w), time);
  }
  void begin(Time time) {
    worked_until_ = time;
  }
  void spend(World& w, Time time) {
    const Time before = std::exchange(worked_until_, worked_until_ + time);
    advance_to(w, now(w) + time);
    if (!in_program_ && config().driver_lock) {
      if (holds_driver_) {
        w.driver.hold(before, worked_until_);
      }
      w.driver.advance(number_, worked_until_);
      w.driver_changed.notify_all();
    }
  }
  void hold_driver(bool holds) {
    holds_driver_ = holds;
  }
  Time worked_until() const {
    return worked_until_;
  }
  void join_program() {
    in_program_ = true;
  }
  bool in_program() const {
    return in_program_;
  }
  int number() const {
    return number_;
  }

 private:
  static int next_number() {
    static std::atomic<int> last{0};
    return ++last;
  }

  const int number_ = next_number();
  bool in_program_ = getpid() == static_cast<pid_t>(syscall(SYS_gettid));
  Time mine_ = 0;
  Time worked_until_ = 0;  // from the thread's start on, without any wait
  bool holds_driver_ = false;
};

Clock& clock() {
  thread_local Clock mine;
  return mine;
}

thread_local bool is_host_work = false;

// Waits until the stream has room; returns the time.
Time make_room(World& w, int stream) {
  Simulation& simulation = w.simulation;
  simulation.run_to(w.program);
  if (const size_t depth = simulation.depth(stream); depth >= kDepth) {
    const uint64_t oldest = simulation.last(stream) - depth + 1;
    clock().advance_to(w, simulation.run_until(stream, oldest));
  }
  return clock().now(w);
}

}  // namespace

Time now() {
  std::lock_guard<std::mutex> lock(world().mutex);
  return clock().now(world());
}

void spend(Time time) {
  World& w = world();
  std::lock_guard<std::mutex> lock(w.mutex);
  if (is_host_work) {
    w.simulation.add_work(w.host_stream, Part::Compute, time, "host",
                          clock().now(w));
    return;
  }
  clock().spend(w, time);
}

void begin_host_work() {
  World& w = world();
  std::lock_guard<std::mutex> lock(w.mutex);
  if (w.host_stream < 0) {
    w.host_stream = w.simulation.add_stream(config().devices);
  }
  is_host_work = true;
}

uint64_t end_host_work() {
  World& w = world();
  std::lock_guard<std::mutex> lock(w.mutex);
  is_host_work = false;
  return w.simulation.last(w.host_stream);
}

void wait_for_host(uint64_t number) {
  wait(world().host_stream, number);
}

void wait_for(Time time) {
  World& w = world();
  std::lock_guard<std::mutex> lock(w.mutex);
  clock().advance_to(w, time);
}

void begin_thread(Time time) {
  clock().begin(time);
}

Time worked_until() {
  return clock().worked_until();
}

void end_thread() {
  if (!config().driver_lock) {
    return;
  }
  World& w = world();
  std::lock_guard<std::mutex> lock(w.mutex);
  w.driver.give_up(clock().number());
  w.driver_changed.notify_all();
}

int thread_number() {
  return clock().number();
}

void join_program() {
  clock().join_program();
}

bool in_program() {
  return clock().in_program();
}

Time program_now() {
  std::lock_guard<std::mutex> lock(world().mutex);
  return world().program;
}

HoldsDriver::HoldsDriver() {
  clock().hold_driver(true);
}

HoldsDriver::~HoldsDriver() {
  clock().hold_driver(false);
}

void wait_for_driver() {
  if (!config().driver_lock || !clock().in_program()) {
    return;
  }
  World& w = world();
  std::unique_lock<std::mutex> lock(w.mutex);
  while (true) {
    const bool is_known = w.driver_changed.wait_for(
        lock, kPatience, [&w] { return w.driver.knows(w.program); });
    if (!is_known) {
      w.driver.give_up_unknown(w.program);
      std::fprintf(stderr,
                   "simcuda: memory that is kept from forks (MADV_DONTFORK) "
                   "was expected to be page-locked, and was not\n");
    }
    const Time free = w.driver.free_from(w.program);
    if (free == w.program) {
      return;
    }
    clock().advance_to(w, free);
  }
}

void announce_page_locking(const void* begin, size_t bytes) {
  if (!config().driver_lock || !clock().in_program()) {
    return;
  }
  World& w = world();
  std::lock_guard<std::mutex> lock(w.mutex);
  w.driver.announce(number(begin), bytes, w.program);
}

void work_on(const void* address) {
  if (!config().driver_lock) {
    return;
  }
  World& w = world();
  std::lock_guard<std::mutex> lock(w.mutex);
  if (clock().in_program()) {
    w.driver.give_up(number(address));  // it cannot wait for itself
  } else {
    w.driver.take_on(clock().number(), number(address));
  }
}

void note_page_locked(const void* begin, size_t bytes) {
  if (!config().driver_lock) {
    return;
  }
  World& w = world();
  std::lock_guard<std::mutex> lock(w.mutex);
  w.driver.complete(number(begin), bytes);
  w.driver_changed.notify_all();
}

int add_stream(int device) {
  std::lock_guard<std::mutex> lock(world().mutex);
  return world().simulation.add_stream(device);
}

uint64_t add_work(int stream, Part part, Time takes, const char* name) {
  World& w = world();
  std::lock_guard<std::mutex> lock(w.mutex);
  const Time from = make_room(w, stream);
  return w.simulation.add_work(stream, part, takes, name, from);
}

uint64_t add_wait(int stream, int other, uint64_t number) {
  World& w = world();
  std::lock_guard<std::mutex> lock(w.mutex);
  const Time from = make_room(w, stream);
  return w.simulation.add_wait(stream, other, number, from);
}

uint64_t add_stamp(int stream, std::shared_ptr<Time> when) {
  World& w = world();
  std::lock_guard<std::mutex> lock(w.mutex);
  const Time from = make_room(w, stream);
  return w.simulation.add_stamp(stream, std::move(when), from);
}

uint64_t add_collective(int stream, const void* communicator,
                        const std::shared_ptr<Meeting>& meeting, Time takes,
                        const char* name) {
  World& w = world();
  std::lock_guard<std::mutex> lock(w.mutex);
  const Time from = make_room(w, stream);
  const auto before = w.collectives.find(communicator);
  if (before != w.collectives.end() && before->second.first != stream) {
    w.simulation.add_wait(stream, before->second.first, before->second.second,
                          from);
  }
  w.simulation.add_meeting(stream, meeting, from);
  w.simulation.add_work(stream, Part::Collective, takes, name, from);
  const uint64_t last = w.simulation.add_meeting(stream, meeting, from);
  w.collectives[communicator] = {stream, last};
  return last;
}

uint64_t last(int stream) {
  std::lock_guard<std::mutex> lock(world().mutex);
  return world().simulation.last(stream);
}

bool reached(int stream, uint64_t number) {
  World& w = world();
  std::lock_guard<std::mutex> lock(w.mutex);
  w.simulation.run_to(w.program);
  if (w.simulation.done(stream, number) || clock().in_program()) {
    return w.simulation.done(stream, number);
  }
  Simulation later = w.simulation.ahead();
  later.run_to(clock().now(w));
  return later.done(stream, number);
}

void wait(int stream, uint64_t number) {
  World& w = world();
  std::lock_guard<std::mutex> lock(w.mutex);
  w.simulation.run_to(w.program);
  if (w.simulation.done(stream, number)) {
    return;
  }
  if (is_host_work) {
    w.simulation.add_wait(w.host_stream, stream, number, clock().now(w));
    return;
  }
  if (clock().in_program()) {
    clock().advance_to(w, w.simulation.run_until(stream, number));
  } else {
    clock().advance_to(w, w.simulation.ahead().run_until(stream, number));
  }
}

Time device_done(int device) {
  World& w = world();
  std::lock_guard<std::mutex> lock(w.mutex);
  w.simulation.run_to(w.program);
  return w.simulation.ahead().run_out(device);
}

Time busy(int device, Part part) {
  World& w = world();
  std::lock_guard<std::mutex> lock(w.mutex);
  w.simulation.run_to(w.program);
  return w.busy[static_cast<size_t>(device)][static_cast<size_t>(part)];
}

bool record_timeline(const std::string& path) {
  World& w = world();
  std::lock_guard<std::mutex> lock(w.mutex);
  w.simulation.run_to(w.program);
  return w.timeline.open(path);
}

}  // namespace simcuda::timing
