#include "timing.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "config.h"
#include "memory.h"
#include "mutexes.h"
#include "world.h"

namespace simcuda::timing {
namespace {

// Streams hold this much; then a launch blocks, as on a card.
constexpr size_t kDepth = 1024;
// What was announced and nobody does for so long, in real time, is given up.
constexpr std::chrono::seconds kPatience{60};
// Lanes go on so far ahead of others, to save turns; about one operator.
constexpr Time kSlack = 20'000;

thread_local bool is_host_work = false;

// A call of a thread: it has the world's lock, and its lane's turn.
struct Call {
  const bool may_give_way = mutexes_held() == 0;
  World& w = world();
  Lanes::Guard guard{w.mutex};
  Clock& mine = clock();
  int lane;  // -1: none

  explicit Call(bool joins_program = false) {
    if (joins_program) {
      mine.join_program(w);
    }
    lane = mine.lane(w);
    if (lane >= 0) {
      w.lanes.enter(lane, guard);
    }
  }

  // Lets lanes go first that are earlier by so much.
  void give_way(Time slack) {
    if (lane >= 0 && may_give_way) {
      w.lanes.give_way(lane, slack, guard);
    }
  }

  // Moves the thread's clock to where the point is reached.
  void wait(Point point) {
    if (lane >= 0 && may_give_way) {
      w.lanes.wait(lane, point, guard);
    } else if (lane < 0 && mine.in_program(w)) {
      mine.advance_to(w, w.simulation.run_until(point));
    } else {
      mine.advance_to(w, w.simulation.ahead(lane >= 0).run_until(point));
    }
  }

  // Waits until the stream has room; returns the time.
  Time make_room(int stream) {
    w.advance();
    if (const size_t depth = w.simulation.depth(stream); depth >= kDepth) {
      wait({stream, w.simulation.last(stream) - depth + 1});
    }
    return mine.now(w);
  }
};

}  // namespace

Time now() {
  World& w = world();
  std::lock_guard<std::mutex> lock(w.mutex);
  return clock().now(w);
}

void spend(Time time) {
  Call call;
  if (is_host_work) {
    call.w.simulation.add_work(call.w.host_stream, Part::Compute, time, "host",
                               call.mine.now(call.w));
    return;
  }
  call.mine.spend(call.w, time);
}

void begin_operator() {
  Call(true).give_way(kSlack);
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
  const Call call;
  call.mine.advance_to(call.w, time);
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

bool in_program() {
  World& w = world();
  std::lock_guard<std::mutex> lock(w.mutex);
  return clock().in_program(w);
}

Time program_now() {
  World& w = world();
  std::lock_guard<std::mutex> lock(w.mutex);
  if (!w.lanes.are_on()) {
    return w.program;
  }
  const int lane = clock().lane(w);
  return lane >= 0 ? w.lanes.clock(lane) : w.lanes.latest();
}

HoldsDriver::HoldsDriver() {
  clock().hold_driver(true);
}

HoldsDriver::~HoldsDriver() {
  clock().hold_driver(false);
}

void wait_for_driver() {
  if (!config().driver_lock) {
    return;
  }
  Call call;
  World& w = call.w;
  while (call.mine.in_program(w)) {
    const Time now = call.mine.now(w);
    const bool is_known = w.driver_changed.wait_for(
        call.guard, kPatience, [&] { return w.driver.knows(now); });
    if (!is_known) {
      w.driver.give_up_unknown(now);
      std::fprintf(stderr,
                   "simcuda: memory that is kept from forks (MADV_DONTFORK) "
                   "was expected to be page-locked, and was not\n");
    }
    const Time free = w.driver.free_from(now);
    if (free == now) {
      return;
    }
    call.mine.advance_to(w, free);
  }
}

void announce_page_locking(const void* begin, size_t bytes) {
  if (!config().driver_lock) {
    return;
  }
  const Call call;
  if (call.mine.in_program(call.w)) {
    call.w.driver.announce(number(begin), bytes, call.mine.now(call.w));
  }
}

void work_on(const void* address) {
  if (!config().driver_lock) {
    return;
  }
  World& w = world();
  std::lock_guard<std::mutex> lock(w.mutex);
  if (clock().in_program(w)) {
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
  Call call;
  const Time from = call.make_room(stream);
  return call.w.simulation.add_work(stream, part, takes, name, from);
}

uint64_t add_wait(int stream, int other, uint64_t number) {
  Call call;
  const Time from = call.make_room(stream);
  return call.w.simulation.add_wait(stream, other, number, from);
}

uint64_t add_stamp(int stream, std::shared_ptr<Time> when) {
  Call call;
  const Time from = call.make_room(stream);
  return call.w.simulation.add_stamp(stream, std::move(when), from);
}

uint64_t add_collective(int stream, const void* communicator,
                        const std::shared_ptr<Meeting>& meeting, Time takes,
                        const char* name) {
  Call call;
  World& w = call.w;
  const Time from = call.make_room(stream);
  const auto before = w.collectives.find(communicator);
  if (before != w.collectives.end() && before->second.stream != stream) {
    w.simulation.add_wait(stream, before->second.stream, before->second.number,
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
  const Call call;
  World& w = call.w;
  w.advance();
  const Time now = call.mine.now(w);
  if (w.simulation.done({stream, number}) || now <= w.simulation.now()) {
    return w.simulation.done({stream, number});
  }
  // A lane that is ahead of others knows what its own device has done by now.
  Simulation later = w.simulation.ahead(/*sets_stamps=*/call.lane >= 0);
  later.run_to(now);
  return later.done({stream, number});
}

void wait(int stream, uint64_t number) {
  Call call;
  World& w = call.w;
  w.advance();
  if (w.simulation.done({stream, number})) {
    return;
  }
  if (is_host_work) {
    w.simulation.add_wait(w.host_stream, stream, number, call.mine.now(w));
    return;
  }
  call.wait({stream, number});
}

Time device_done(int device) {
  Call call;
  call.give_way(0);
  call.w.advance();
  return call.w.simulation.ahead().run_out(device);
}

Time busy(int device, Part part) {
  Call call;
  call.give_way(0);
  call.w.advance();
  return call.w.busy[static_cast<size_t>(device)][static_cast<size_t>(part)];
}

bool record_timeline(const std::string& path) {
  Call call;
  call.give_way(0);
  call.w.advance();
  return call.w.timeline.open(path);
}

void start_lane(int device) {
  const Call call;
  World& w = call.w;
  w.advance();
  w.lanes.start(device, call.lane >= 0 ? w.lanes.clock(call.lane) : w.program);
}

void stop_lane(int device) {
  const Call call;
  World& w = call.w;
  w.lanes.stop(device);
  if (!w.lanes.are_on()) {
    w.program = std::max(w.program, w.lanes.latest());
  }
}

bool enter_lane(int device) {
  World& w = world();
  Lanes::Guard guard(w.mutex);
  if (!w.lanes.is_started(device)) {
    return false;
  }
  clock().enter(device);
  w.lanes.enter(device, guard);
  return true;
}

void pause_lanes() {
  std::lock_guard<std::mutex> lock(world().mutex);
  world().lanes.pause();
}

void resume_lanes() {
  std::lock_guard<std::mutex> lock(world().mutex);
  world().lanes.resume();
}

void set_patience_of_lanes(double seconds) {
  std::lock_guard<std::mutex> lock(world().mutex);
  world().lanes.patience = std::chrono::duration<double>(seconds);
}

int make_lock(bool is_taken) {
  std::lock_guard<std::mutex> lock(world().mutex);
  return world().lanes.make_lock(is_taken);
}

void acquire(int lock) {
  Call call(true);
  call.w.lanes.acquire(lock, call.lane, call.guard);
}

bool release(int lock) {
  Call call;
  return call.w.lanes.release(lock, call.lane, call.guard);
}

}  // namespace simcuda::timing
