#include "simulation.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace simcuda {

Simulation::Simulation(int devices, Sharing sharing)
    : sharing_(sharing), engines_(static_cast<size_t>(devices)) {}

int Simulation::add_stream(int device) {
  queues_.push_back(Queue{device, {}});
  return static_cast<int>(queues_.size()) - 1;
}

uint64_t Simulation::add(int stream, Item item) {
  Queue& queue = queues_[static_cast<size_t>(stream)];
  item.arrival = ++arrivals_;
  if (queue.items.empty()) {
    waiting_.push_back(stream);
  }
  queue.items.push_back(std::move(item));
  return ++queue.last;
}

uint64_t Simulation::add_work(int stream, Part part, Time takes,
                              const char* name, Time from) {
  Item item{Kind::Work, from, 0};
  item.part = part;
  item.takes = std::max<Time>(takes, 1);
  item.name = name;
  return add(stream, std::move(item));
}

uint64_t Simulation::add_wait(int stream, int other, uint64_t number,
                              Time from) {
  Item item{Kind::Wait, from, 0};
  item.other = other;
  item.number = number;
  return add(stream, std::move(item));
}

uint64_t Simulation::add_stamp(int stream, std::shared_ptr<Time> when,
                               Time from) {
  Item item{Kind::Stamp, from, 0};
  item.when = std::move(when);
  return add(stream, std::move(item));
}

uint64_t Simulation::add_meeting(int stream, std::shared_ptr<Meeting> meeting,
                                 Time from) {
  Item item{Kind::Meet, from, 0};
  item.meeting = std::move(meeting);
  return add(stream, std::move(item));
}

bool Simulation::done(Point point) const {
  return queues_[static_cast<size_t>(point.stream)].done >= point.number;
}

uint64_t Simulation::last(int stream) const {
  return queues_[static_cast<size_t>(stream)].last;
}

size_t Simulation::depth(int stream) const {
  return queues_[static_cast<size_t>(stream)].items.size();
}

void Simulation::run_to(Time limit) {
  while (step(limit)) {
  }
}

void Simulation::run_to_first(Time limit, const std::vector<Point>& points) {
  const auto is_reached = [&] {
    return std::any_of(points.begin(), points.end(),
                       [this](Point point) { return done(point); });
  };
  settle();
  while (!is_reached() && step(limit)) {
  }
}

Time Simulation::run_until(Point point) {
  run_to_first(kNever, {point});
  return now_;
}

Time Simulation::run_out(int device) {
  for (size_t i = 0; i < queues_.size(); ++i) {
    if (queues_[i].device == device) {
      run_until({static_cast<int>(i), queues_[i].last});
    }
  }
  return now_;
}

Simulation Simulation::ahead(bool sets_stamps) const {
  Simulation copy = *this;
  copy.observer = nullptr;
  for (Queue& queue : copy.queues_) {
    for (Item& item : queue.items) {
      if (!sets_stamps) {
        item.when = nullptr;
      }
      item.meeting = nullptr;
    }
  }
  return copy;
}

// Goes to the next time at which something happens; false when that is after
// the limit, which is then the time, or never.
bool Simulation::step(Time limit) {
  settle();
  const Time next = next_time();
  if (next > limit || next == kNever) {
    now_ = limit == kNever ? now_ : std::max(now_, limit);
    return false;
  }
  now_ = next;
  finish_work();
  settle();
  return true;
}

// Does everything that takes no time.
void Simulation::settle() {
  while (pass_controls()) {
  }
  start_work();
}

bool Simulation::pass_controls() {
  bool passed = false;
  for (size_t i = 0; i < waiting_.size();) {
    Queue& queue = queues_[static_cast<size_t>(waiting_[i])];
    while (!queue.items.empty()) {
      Item& item = queue.items.front();
      if (!may_pass(item)) {
        break;
      }
      if (item.when) {
        *item.when = now_;
      }
      pop(queue);
      passed = true;
    }
    if (queue.items.empty()) {
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  return passed;
}

bool Simulation::may_pass(Item& item) const {
  if (item.kind == Kind::Work || item.from > now_ ||
      (item.kind == Kind::Wait && !done({item.other, item.number}))) {
    return false;
  }
  if (item.meeting) {
    item.from = std::exchange(item.meeting, nullptr)->meet(now_);
  }
  return item.from <= now_;
}

void Simulation::pop(Queue& queue) {
  queue.items.pop_front();
  ++queue.done;
  queue.free = now_;
}

// An idle engine takes the work that has been ready for longest.
void Simulation::start_work() {
  for (size_t device = 0; device < engines_.size(); ++device) {
    std::array<int, kParts> first;
    first.fill(-1);
    std::array<std::pair<Time, uint64_t>, kParts> rank{};
    for (const int stream : waiting_) {
      const Queue& queue = queues_[static_cast<size_t>(stream)];
      const Item& item = queue.items.front();
      const auto part = static_cast<size_t>(item.part);
      if (queue.device != static_cast<int>(device) || queue.running ||
          item.kind != Kind::Work || item.from > now_ ||
          engines_[device][part].stream >= 0) {
        continue;
      }
      const std::pair<Time, uint64_t> mine{std::max(item.from, queue.free),
                                           item.arrival};
      if (first[part] < 0 || mine < rank[part]) {
        first[part] = stream;
        rank[part] = mine;
      }
    }
    for (const int stream : first) {
      if (stream >= 0) {
        start(stream);
      }
    }
  }
}

void Simulation::start(int stream) {
  Queue& queue = queues_[static_cast<size_t>(stream)];
  const Item& item = queue.items.front();
  queue.running = true;
  Engine& on = engine(queue.device, item.part);
  on.stream = stream;
  on.started = now_;
  on.since = now_;
  on.left = static_cast<double>(item.takes);
  on.speed = 1;
  on.ends = now_ + item.takes;
  retime(queue.device);
}

void Simulation::finish_work() {
  for (size_t device = 0; device < engines_.size(); ++device) {
    for (size_t part = 0; part < kParts; ++part) {
      Engine& on = engines_[device][part];
      if (on.stream < 0 || on.ends > now_) {
        continue;
      }
      const int stream = std::exchange(on.stream, -1);
      Queue& queue = queues_[static_cast<size_t>(stream)];
      if (observer) {
        observer(Interval{queue.device, static_cast<Part>(part), stream,
                          queue.items.front().name, on.started, now_});
      }
      queue.running = false;
      pop(queue);
      if (queue.items.empty()) {
        waiting_.erase(std::find(waiting_.begin(), waiting_.end(), stream));
      }
      retime(queue.device);
    }
  }
}

// Copies slow each other down while both directions run, and share the link
// with a collective that uses it.
void Simulation::retime(int device) {
  Engine& in = engine(device, Part::HostToDevice);
  Engine& out = engine(device, Part::DeviceToHost);
  Engine& collective = engine(device, Part::Collective);
  const bool copies = in.stream >= 0 || out.stream >= 0;
  const bool shared = sharing_.collectives_on_link && collective.stream >= 0;
  const bool both = shared || (in.stream >= 0 && out.stream >= 0);
  const double speed = (both ? sharing_.together : 1) * (shared ? 0.5 : 1);
  set_speed(in, speed);
  set_speed(out, speed);
  set_speed(collective, shared && copies ? 0.5 : 1);
}

void Simulation::set_speed(Engine& on, double speed) const {
  if (on.stream < 0 || on.speed == speed) {
    return;
  }
  on.left -= static_cast<double>(now_ - on.since) * on.speed;
  on.since = now_;
  on.speed = speed;
  on.ends = now_ + static_cast<Time>(std::ceil(std::max(on.left, 0.0) / speed));
}

Time Simulation::next_time() const {
  Time next = kNever;
  for (const auto& parts : engines_) {
    for (const Engine& on : parts) {
      if (on.stream >= 0) {
        next = std::min(next, on.ends);
      }
    }
  }
  for (const int stream : waiting_) {
    const Queue& queue = queues_[static_cast<size_t>(stream)];
    if (!queue.running && queue.items.front().from > now_) {
      next = std::min(next, queue.items.front().from);
    }
  }
  return next;
}

Simulation::Engine& Simulation::engine(int device, Part part) {
  return engines_[static_cast<size_t>(device)][static_cast<size_t>(part)];
}

}  // namespace simcuda
