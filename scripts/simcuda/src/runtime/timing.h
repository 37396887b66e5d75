// Virtual time of the timing mode: the devices' simulation and the host's
// clocks. Functions may be called from any thread, and only in timed mode.
//
// The program's threads have one clock: PyTorch's threads hand the work to each
// other. A thread in the background (not the main thread, and none that has run
// an operator) has its own, which never lags behind the program's: what it
// waits for does not hold up the program. When it is run is a matter of real
// time, so what it makes for the program is ready when it would be, had the
// thread run from its start on and not waited. While it page-locks memory, it
// holds the driver's lock (driver_lock.h), if that is configured.
//
// While lanes are started (lanes.h), each has a clock in the place of the
// program's. A thread of the program that is in none is then as one in the
// background, for which the program's clock is where all lanes have come to.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "simulation.h"

namespace simcuda::timing {

// The calling thread's clock.
Time now();
// The calling thread spends host time.
void spend(Time time);
// The calling thread's clock goes to `time`, unless it is there already.
void wait_for(Time time);
// The calling thread began when another one's clock showed `time`.
void begin_thread(Time time);
// What the calling thread's clock would show if it had never waited.
Time worked_until();
// The calling thread is at its end.
void end_thread();
// The calling thread's number, from 1.
int thread_number();
// The calling thread is about to run an operator: it is one of the program's.
void begin_operator();
bool in_program();
// The program's clock; with lanes, the caller's, or the latest for others.
Time program_now();

// Between these two the calling thread stands for one of the host's own, which
// does what is asked of it in order, when the program has gone on. What it
// spends and waits for is queued as if on a stream. Returns a number for
// wait_for_host, by which the program waits until that thread has done it.
void begin_host_work();
uint64_t end_host_work();
void wait_for_host(uint64_t number);

// The program's threads wait until none in the background has the driver's
// lock. In what such a thread spends while it has a HoldsDriver, it has.
void wait_for_driver();
class HoldsDriver {
 public:
  HoldsDriver();
  HoldsDriver(const HoldsDriver&) = delete;
  HoldsDriver& operator=(const HoldsDriver&) = delete;
  ~HoldsDriver();
};
// The program will have a thread in the background page-lock this memory, and
// does not go past what that thread is known to do.
void announce_page_locking(const void* begin, size_t bytes);
// The calling thread works on such memory, or has page-locked it.
void work_on(const void* address);
void note_page_locked(const void* begin, size_t bytes);

int add_stream(int device);
// See Simulation. A full stream makes the caller wait, as on a card.
uint64_t add_work(int stream, Part part, Time takes, const char* name);
uint64_t add_wait(int stream, int other, uint64_t number);
uint64_t add_stamp(int stream, std::shared_ptr<Time> when);
// Work that begins when the streams of all processes have come to it, and ends
// when it has in all. `communicator`: whose collectives come one after the
// other, whatever streams they are on.
uint64_t add_collective(int stream, const void* communicator,
                        const std::shared_ptr<Meeting>& meeting, Time takes,
                        const char* name);
uint64_t last(int stream);
// Whether the stream has done `number` at the caller's time.
bool reached(int stream, uint64_t number);
// Moves the caller's clock to where the stream has done `number`.
void wait(int stream, uint64_t number);

// When all that is queued on the device now will be done.
Time device_done(int device);
// Nanoseconds for which a part of a device has worked so far.
Time busy(int device, Part part);
// Writes all work that ends from now on to a file, as JSON lines; "" stops.
// False when the file cannot be written.
bool record_timeline(const std::string& path);

// See Lanes. A lane starts when the caller's clock shows, and the program goes
// on where the last lane has stopped.
void start_lane(int device);
void stop_lane(int device);
// The calling thread is in this lane from now on, and returns when that has its
// turn. False when it is not started.
bool enter_lane(int device);
void pause_lanes();
void resume_lanes();
void set_patience_of_lanes(double seconds);
int make_lock(bool is_taken);
void acquire(int lock);
bool release(int lock);

}  // namespace simcuda::timing
