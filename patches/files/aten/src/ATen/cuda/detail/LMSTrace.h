#pragma once

#include <ATen/core/operator_name.h>
#include <ATen/cuda/detail/LMSCoreBooks.h>
#include <ATen/cuda/detail/LMSCorePolicy.h>
#include <ATen/cuda/detail/LMSCoreValues.h>
#include <ATen/cuda/detail/LMSCudaEvent.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <ostream>
#include <string>
#include <unordered_map>
#include <vector>

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
//
// Note [Recording a report]
// ~~~~~~~~~~~~~~~~~~~~~~~~~
// A report is what really happened on a device for a while. It is recorded as a
// trace is, with lines for what the pager did besides, and changes no decision:
// no recipes are looked for, and lists are cut as ever. It begins with a `page`
// for each storage that is there already. Lines are kept in memory, so that
// nothing can fail that the program has not asked for. One that begins on the
// host later has such a line then. `at` has begin and end,
// in microseconds from when the current stream comes to the report; `stream` is
// 0 for that one, and counts others as they appear, the copies' own aside. What
// has no time of its own happened between the lines beside it.
// torch/cuda/_lms_timeline/measured.py reads all that.
//
//   {"page": 1, "bytes": 512, "on_device": 1, "host": 0}
//   {"copy": "out", "storage": 1, "ahead": 0, "host": 64, "at": [0.5, 9.5]}
//   {"left": 1, "how": "copied", "room": 512}
//   {"wait": "memory", "copy": 0, "stream": 0, "at": [7.0, 9.5]}
//   {"made": 1, "op": "aten::mul", "stream": 0, "at": [9.5, 11.0]}
//   {"disk": "write", "storage": 1, "host": 64, "at": [9.5, 19.5]}
//   {"host_free": 64}
//   {"module": "layers.3"}
//
// Copies are numbered from 0 on; `host` is where a copy's first bytes lie, or
// those of a transfer between host and disk. A wait names the last copy that it
// is for, or -1; "host" is one for the host, which waits for memory of its own
// or for a disk.

// What is being recorded in the process, a trace or a report. Thread safe.
class Trace {
 public:
  // An operator on its way; `begin` is null if it is not recorded.
  struct Span {
    std::string name;
    c10::DeviceIndex device = 0;
    cudaStream_t stream = nullptr;
    Event begin;
    Event end;
  };

  // Null while nothing is recorded.
  static Trace* get() noexcept {
    return recorded_.load(std::memory_order_acquire);
  }
  // What records the device, else null.
  static Trace* of(c10::DeviceIndex device) noexcept;
  static Trace* report_of(c10::DeviceIndex device) noexcept;
  bool is_report() const {
    return origin_ != nullptr;
  }

  // Starts a file about device 0, its first line the header. Throws c10::Error,
  // naming the file, if it cannot be written; so do step, write_completed and
  // close, and recording is over then.
  static void open(const std::string& path, const std::string& header);
  // Writes the rest, after the device is done with it.
  static void close();

  // Starts a report about a device. Throws c10::Error if something is being
  // recorded.
  static void open_report(c10::DeviceIndex device, Books& books);
  // Its lines, after the device is done with them; the last one is `end`, with
  // the time on the current stream.
  static std::string close_report();
  // Operators run in the module of that name from here on.
  static void enter_module(const std::string& name);

  // An iteration begins.
  static void step();

  // Around an operator on the current stream. Not recorded in a graph capture.
  static Span begin(const c10::OperatorName& name);
  static void end(Span& span);
  // Writes the lines whose times are known, if there are many of them. Without
  // the mutex of a device.
  static void write_completed();

  // With the mutex of the device.
  void add_alloc(const PageEntry& storage);
  void add_free(const Page& storage);
  // `recipe`: that the operator can run again by, if it can.
  void add_operator(
      const Operator& op,
      const Span& span,
      const Ingredients* recipe);

  // The same, of a report; a wait for the host comes without the mutex.
  void add_copy(const Copy& copy, const Event& begin, const Event& end);
  void add_transfer(
      const DiskTransfer& transfer,
      const Event& begin,
      const Event& end);
  void add_departure(const Page& page, Departure how, size_t room);
  void add_wait(
      cudaStream_t stream,
      const Events& events,
      std::optional<Activity> cause, // none: the host
      const Event& begin,
      const Event& end);
  void add_made(
      const Page& page,
      const std::string& op,
      cudaStream_t stream,
      const Event& begin,
      const Event& end);
  void add_host_free(const HostPieces& pieces);

 private:
  struct Line {
    std::string text; // without the time, if it has one, and the last brace
    Event begin; // null: it has no time
    Event end;
  };

  // A report if there is no path.
  Trace(c10::DeviceIndex device, const std::string& path);
  static void publish(std::unique_ptr<Trace> trace);
  // With the mutex held.
  void add(std::string text, Event begin = nullptr, Event end = nullptr);
  void add_page(const PageEntry& page);
  std::string stream_field(cudaStream_t stream);
  void write_lines(bool wait);
  void write_times(std::ostream& text, const Line& line) const;
  void write(const std::string& text);
  void check_file();

  static std::atomic<Trace*> recorded_;

  const c10::DeviceIndex device_;
  std::mutex mutex_;
  const std::string path_;
  std::ofstream file_;
  const Event origin_; // of the times of a report, else null
  std::string report_; // what is written of it
  std::vector<cudaStream_t> streams_; // by their number in the report
  int64_t copies_ = 0;
  std::unordered_map<const CUevent_st*, int64_t> copy_of_; // by its end
  std::deque<Line> lines_; // not written yet
  int64_t steps_ = 0;
  size_t new_lines_ = 0; // since the last attempt to write
};

} // namespace at::cuda::lms
