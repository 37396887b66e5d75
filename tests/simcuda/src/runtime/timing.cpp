#include "timing.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

#include "card.h"
#include "config.h"
#include "timeline.h"

namespace simcuda::timing {
namespace {

// Streams hold this much; then a launch blocks, as on a card.
constexpr size_t kDepth = 1024;

struct World {
  std::mutex mutex;
  Simulation simulation{config().devices, card().together};
  Time program = 0;  // the program's clock
  std::array<std::array<Time, kParts>, 16> busy{};
  Timeline timeline;

  World() {
    timeline.open(config().timeline);
    simulation.observer = [this](const Interval& interval) {
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
    worked_until_ += time;
    advance_to(w, now(w) + time);
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

 private:
  bool in_program_ = getpid() == static_cast<pid_t>(syscall(SYS_gettid));
  Time mine_ = 0;
  Time worked_until_ = 0;  // from the thread's start on, without any wait
};

Clock& clock() {
  thread_local Clock mine;
  return mine;
}

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
  clock().spend(w, time);
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
