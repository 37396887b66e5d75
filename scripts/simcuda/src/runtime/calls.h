// Every simulated CUDA function begins with SIMCUDA_ENTER: it counts the call,
// lets the fault plan fail it, and reports the errors that stick to a device.
//
// A plan is "cudaMalloc:3,cudaHostAlloc:1-": the third cudaMalloc fails, and
// every cudaHostAlloc from the first on. Functions with variants are counted as
// one: cudaStreamCreate stands for cudaStreamCreateWithFlags and
// cudaStreamCreateWithPriority, and so on.
#pragma once

#include <driver_types.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "own_time.h"

namespace simcuda {

// One item of a plan: call `number`, 1-based, and with `onwards` all after it.
struct Fault {
  uint64_t number;
  bool onwards;
};

// One counted function. Objects live for ever and are found by name.
class Function {
 public:
  Function(const char* name, cudaError_t fault);

  // Counts a call; cudaSuccess, or the error that the plan injects.
  cudaError_t count();

  const char* const name;
  const cudaError_t fault;  // what an injected failure returns
  const int64_t takes;      // host time of a call, in virtual nanoseconds

  void plan(std::vector<Fault> faults);  // replaces the plan; counts from now
  uint64_t calls() const;                // since the process started

 private:
  mutable std::mutex mutex_;
  uint64_t calls_ = 0;
  uint64_t base_ = 0;  // calls when the plan was set
  std::vector<Fault> faults_;
};

// Functions are registered under their name; a second one of the same name (a
// variant, in another file) is the first.
Function& function(const char* name, cudaError_t fault);

// The error, now also this thread's last error.
cudaError_t report(cudaError_t error);

// Makes `error` the result of every later call, as after a device assert.
void stick(cudaError_t error, const std::string& why);
cudaError_t sticky();

// True in a process forked from one that used the simulation: no worker exists.
bool forked();

cudaError_t enter(Function& function);
cudaError_t enter_thread(Function& function);

// Refuses what is not simulated, saying so once per function on stderr.
cudaError_t not_simulated(const char* name);

// Empty when the plan was taken, else what is wrong with it.
std::string set_faults(const std::string& plan);

}  // namespace simcuda

#define SIMCUDA_ENTER_BY(enter, name, fault)                              \
  const ::simcuda::OwnTime own_time;                                      \
  static ::simcuda::Function& entered = ::simcuda::function(name, fault); \
  if (const cudaError_t failed = ::simcuda::enter(entered)) {             \
    return ::simcuda::report(failed);                                     \
  }

#define SIMCUDA_ENTER(name, fault) SIMCUDA_ENTER_BY(enter, name, fault)

// For calls that may not be made while a stream is captured, see capture.h.
#define SIMCUDA_ENTER_UNSAFE(name, fault)                           \
  SIMCUDA_ENTER(name, fault)                                        \
  if (const cudaError_t illegal = ::simcuda::check_unsafe_call()) { \
    return ::simcuda::report(illegal);                              \
  }

// For functions that touch nothing but the calling thread: errors that stick to
// a device do not show in them, so guards can be destroyed.
#define SIMCUDA_ENTER_THREAD(name, fault) \
  SIMCUDA_ENTER_BY(enter_thread, name, fault)
