// The card that the timing mode imitates: what work costs, in virtual time.
// The numbers come from cards.json, through SIMCUDA_CARD.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "../simcuda.h"
#include "simulation.h"

namespace simcuda {

// Both directions between host and device, by Part.
struct Link {
  double in = 0;   // bytes per second, host to device
  double out = 0;  // device to host
};

class Card {
 public:
  // Of "name=value,..."; exits the process when a value is missing or wrong.
  explicit Card(const std::string& text);

  // The larger of arithmetic and memory traffic, and the launches.
  Time kernel(const SimcudaKernel& kernel) const;
  // Memory traffic of a copy or a fill within the device.
  Time traffic(double bytes) const;
  // Memory traffic of the host's processors.
  Time host_traffic(double bytes) const;
  // A copy between host and device.
  Time copy(Part direction, uint64_t bytes, bool page_locked) const;

  // A collective in which each device sends so many bytes.
  Time collective(double bytes) const;

  // What is read from disk and written to it, one thing at a time.
  Time disk(uint64_t read, uint64_t written) const;

  // Host time of a function of the runtime, of bytes that the kernel clears,
  // and of bytes that are there and get page-locked.
  Time call(const std::string& function) const;
  Time clearing(uint64_t bytes) const;
  Time page_locking(uint64_t bytes) const;
  // Host time of an operator, from the program's call to the kernel's launch.
  Time operation() const;

  std::string name;
  int major = 8;  // compute capability
  int minor = 0;
  int processors = 108;
  Sharing sharing;

 private:
  std::array<double, SIMCUDA_RATES> rates_{};  // FLOP/s reached, by SimcudaRate
  double bandwidth_ = 0;                       // of its memory, reached
  double host_bandwidth_ = 0;                  // likewise, of the host's
  Link page_locked_;
  Link pageable_;
  double collective_ = 0;  // bytes per second, reached, each way
  double disk_read_ = 0;   // bytes per second
  double disk_write_ = 0;
  double launch_ns_ = 0;      // from one kernel's end to the next one's start
  double copy_ns_ = 0;        // latency of a copy
  double collective_ns_ = 0;  // likewise
  double operation_ns_ = 0;
  double call_ns_ = 0;                   // of functions that are not in calls_
  std::map<std::string, double> calls_;  // nanoseconds
  double page_clear_ns_per_byte_ = 0;
  double page_lock_ns_per_byte_ = 0;
};

// Of the configuration. Only in timed mode.
const Card& card();

}  // namespace simcuda
