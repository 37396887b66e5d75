// The SIMCUDA_* environment variables, read once, at the first CUDA call or new
// thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace simcuda {

// How operators become results, or time; see README.
enum class Kernels { Inline, Async, Timed };

enum class Schedule { AsTheyCome, Early, Late, Split };

// What a task in a stream is; the schedule decides which of them may wait.
enum class TaskKind { Control, Copy, CopyRest, Kernel };

struct Config {
  uint64_t capacity;  // bytes per device
  int devices;        // at least 1
  Kernels kernels;
  uint64_t copy_bandwidth;  // bytes per second each way, 0: unlimited
  Schedule schedule;        // see README
  int poison;               // 0 none, 1 cudaMalloc/cudaFree, 2 blocks
  std::string faults;       // plan, see calls.h
  std::string shared;       // file, see shared_card.h; empty: none
  std::string card;         // see card.h; used in timed mode
  std::string timeline;     // file to write, see timeline.h; likewise
  bool driver_lock;         // see driver_lock.h; likewise
  bool cublas;              // see cublas.cpp

  // True when the schedule delays this kind until somebody waits for it.
  bool delays(TaskKind kind) const;
};

// Exits the process with a message when a variable is wrong.
const Config& config();

inline bool timed() {
  return config().kernels == Kernels::Timed;
}

// "64M" -> 67108864; nothing when it is not a size. Suffixes are powers of
// 1024.
std::optional<uint64_t> parse_size(const std::string& text);

}  // namespace simcuda
