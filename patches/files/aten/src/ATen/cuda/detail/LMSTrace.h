#pragma once

#include <ATen/core/operator_name.h>
#include <ATen/cuda/detail/LMSCorePolicy.h>
#include <ATen/cuda/detail/LMSCoreValues.h>
#include <ATen/cuda/detail/LMSCudaEvent.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <fstream>
#include <mutex>
#include <string>

namespace at::cuda::lms {

// Note [Recording a trace]
// ~~~~~~~~~~~~~~~~~~~~~~~~
// A trace is a file of what the engine sees on one device, in the order in
// which it sees it: docs/traces.md has the format. A line is added under the
// mutex of the device, so the lines are in the order of the policy's calls. How
// long an operator took is known only when the device has run it, so lines wait
// in memory, behind the first operator that is not done, and are written later,
// when no mutex of a device is held: writing may fail with an error, for which
// `Device::finish_operator` is no place. Recording never waits for the device,
// but for the last operators in `close`.
//
// Every operator is between two timed events on its stream. The first one is
// recorded when the stream waits for all that the operator needs. What the
// operator itself makes the stream wait for (memory for its results that is
// still being paged out, a host that launches late) is in its time, so the
// times are those of the operators alone only where the program fits. Which
// storages an operator could make again does not hang on that: their recipes
// are looked for while a trace is recorded, also if memory is not short.

// The trace of the process. Thread safe.
class Trace {
 public:
  static constexpr c10::DeviceIndex kDevice = 0; // the one that is recorded

  // An operator on its way; `begin` is null if it is not recorded.
  struct Span {
    std::string name;
    Event begin;
    Event end;
  };

  // Null while nothing is recorded.
  static Trace* get() noexcept {
    return recorded_.load(std::memory_order_acquire);
  }
  // Starts a file, its first line the header. Throws c10::Error, naming the
  // file, if it cannot be written; so do step, write_completed and close, and
  // recording is over then.
  static void open(const std::string& path, const std::string& header);
  // Writes the rest, after the device is done with it.
  static void close();

  // An iteration begins.
  static void step();

  // Around an operator on the current stream. Not recorded in a graph capture.
  static Span begin(const c10::OperatorName& name);
  static void end(Span& span);
  // Writes the lines whose times are known, if there are many of them. Without
  // the mutex of a device.
  static void write_completed();

  // With the mutex of the device.
  void add_alloc(const Page& storage);
  void add_free(const Page& storage);
  // `recipe`: that the operator can run again by, if it can.
  void add_operator(
      const Operator& op,
      const Span& span,
      const Ingredients* recipe);

 private:
  struct Line {
    std::string text; // without the time, if it has one, and the last brace
    Event begin; // null: it has no time
    Event end;
  };

  Trace(const std::string& path, const std::string& header);
  // With the mutex held.
  void add(std::string text, Event begin = nullptr, Event end = nullptr);
  void write_lines(bool wait);
  void write(const std::string& text);
  void check_file();

  static std::atomic<Trace*> recorded_;

  std::mutex mutex_;
  const std::string path_;
  std::ofstream file_;
  std::deque<Line> lines_; // not written yet
  int64_t steps_ = 0;
  size_t new_lines_ = 0; // since the last attempt to write
};

} // namespace at::cuda::lms
