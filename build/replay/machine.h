#pragma once

#include "trace.h"

#include <cstddef>
#include <string>
#include <vector>

namespace lms_replay {

// What a trace is replayed on. Bandwidths are in bytes per second.
struct Machine {
  size_t capacity = 0; // bytes of device memory
  double in_bandwidth = 0; // host to device
  double out_bandwidth = 0;
  double both_bandwidth = 0; // of both directions at once, in sum
  double memory_bandwidth = 0; // of the device's memory, reads and writes
  size_t host = 0; // bytes of the host's memory for pages; 0: enough
  size_t disk = 0; // bytes of the disk; 0: there is none
  double read_bandwidth = 0; // of the disk, which does one thing at a time
  double write_bandwidth = 0;
  Time latency = 0; // of a copy
  Time host_per_operator = 0; // what the program takes to ask for one
  Time launch = 0; // of a copy within the device
};

// The machine that words of the command line describe: capacity=N in bytes,
// h2d=N, d2h=N, both=N and memory=N in bytes per second, latency_ns=N,
// launch_ns=N and operator_ns=N, host=N and disk=N in bytes, disk_read=N and
// disk_write=N in bytes per second. Throws std::invalid_argument if one is
// missing, unknown or no number.
Machine parse_machine(const std::vector<std::string>& words);

} // namespace lms_replay
