// What the devices do, in virtual time: streams of work, parts of a device that
// each do one piece of work at a time, and waits between streams. Knows nothing
// of CUDA, of threads or of real time. Nothing is decided before its time: what
// may still be queued can still come first. Copyable, so that the future can be
// looked at without going there.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

namespace simcuda {

using Time = int64_t;  // virtual nanoseconds since the process began

// Disk: the host's, for what this device's streams have it read and write.
// Collective: what moves numbers between this device and others.
enum class Part { Compute, HostToDevice, DeviceToHost, Disk, Collective };
constexpr size_t kParts = 5;

// One piece of work, done.
struct Interval {
  int device;
  Part part;
  int stream;
  const char* name;  // lives for ever
  Time start;
  Time end;
};

// How work that runs at once slows each other down.
struct Sharing {
  // Of the sum of both copy directions' bandwidths, what is left when both run
  // at once; 1 when they do not disturb each other.
  double together = 1;
  // Collectives use both directions of the link that copies use.
  bool collectives_on_link = false;
};

// Where a stream has done `number` of what was queued.
struct Point {
  int stream;
  uint64_t number;
};

// Where streams of several processes wait for each other.
class Meeting {
 public:
  virtual ~Meeting() = default;
  // A stream is there at `time`. Waits, in real time, for the other processes
  // to say when theirs are; returns when the last one is.
  virtual Time meet(Time time) = 0;
};

class Simulation {
 public:
  static constexpr Time kNever = std::numeric_limits<Time>::max();

  Simulation(int devices, Sharing sharing);

  // Until then all has happened.
  Time now() const {
    return now_;
  }

  int add_stream(int device);

  // Each appends to a stream, at the host's time `from`, and returns the
  // number of what it appended; a stream counts from 1.
  uint64_t add_work(int stream, Part part, Time takes, const char* name,
                    Time from);
  uint64_t add_wait(int stream, int other, uint64_t number, Time from);
  uint64_t add_meeting(int stream, std::shared_ptr<Meeting> meeting, Time from);
  // `when` is set to the time at which the stream gets there.
  uint64_t add_stamp(int stream, std::shared_ptr<Time> when, Time from);

  bool done(Point point) const;
  uint64_t last(int stream) const;
  size_t depth(int stream) const;

  // Lets everything happen that happens until `limit`.
  void run_to(Time limit);
  // As the above, but not beyond where the first of the points is reached.
  void run_to_first(Time limit, const std::vector<Point>& points);
  // Lets everything happen until the point is reached; returns when.
  Time run_until(Point point);
  // As the above, for all streams of a device.
  Time run_out(int device);

  // A copy for looking ahead: what happens in it is not seen outside, but for
  // stamps if they are to be set. In it,
  // other processes come to meetings when this one does.
  Simulation ahead(bool sets_stamps = false) const;

  // Told of all work when it ends.
  std::function<void(const Interval&)> observer;

 private:
  enum class Kind { Work, Wait, Stamp, Meet };

  struct Item {
    Kind kind;
    Time from;         // not before
    uint64_t arrival;  // among all items of all streams
    Part part{};
    Time takes = 0;
    const char* name = nullptr;
    int other = -1;  // stream and number to wait for
    uint64_t number = 0;
    // Empty in a copy for looking ahead.
    std::shared_ptr<Time> when = nullptr;
    std::shared_ptr<Meeting> meeting = nullptr;  // or the others are known
  };

  struct Queue {
    int device;
    std::deque<Item> items;
    uint64_t last = 0;
    uint64_t done = 0;
    Time free = 0;  // when the last item was done
    bool running = false;
  };

  struct Engine {
    int stream = -1;  // -1: idle
    Time started = 0;
    Time since = 0;   // when `left` was right
    double left = 0;  // nanoseconds at full speed
    double speed = 1;
    Time ends = 0;
  };

  uint64_t add(int stream, Item item);
  bool step(Time limit);
  void settle();
  bool pass_controls();
  bool may_pass(Item& item) const;
  void start_work();
  void start(int stream);
  void finish_work();
  void pop(Queue& queue);
  void retime(int device);
  void set_speed(Engine& on, double speed) const;
  Time next_time() const;
  Engine& engine(int device, Part part);

  Sharing sharing_;
  Time now_ = 0;
  uint64_t arrivals_ = 0;
  std::vector<Queue> queues_;                        // by stream
  std::vector<int> waiting_;                         // streams that have items
  std::vector<std::array<Engine, kParts>> engines_;  // by device
};

}  // namespace simcuda
