#include "report.h"

#include "bound.h"

#include <cstdio>
#include <string>

namespace lms_replay {
namespace {

double to_microseconds(double time) {
  return time / 1e6;
}

void print_out_of_memory(const OutOfMemory& error) {
  constexpr size_t kFirstLine = 2; // the header is line 1
  std::printf(
      "{\"out_of_memory\": {\"line\": %zu, \"wanted_bytes\": %zu, "
      "\"missing_bytes\": %zu}}\n",
      error.event + kFirstLine,
      error.wanted,
      error.missing);
}

void print_totals(const Totals& totals) {
  auto stall = [&totals](Stall cause) {
    const Time time = totals.stalls[static_cast<size_t>(cause)];
    return to_microseconds(static_cast<double>(time));
  };
  std::printf(
      "\"time_us\": %.17g, \"compute_us\": %.17g, "
      "\"in_bytes\": %zu, \"out_bytes\": %zu, "
      "\"copying_us\": %.17g, \"hidden_us\": %.17g, "
      "\"demanded_us\": %.17g, \"late_us\": %.17g, \"memory_us\": %.17g",
      to_microseconds(static_cast<double>(totals.time)),
      to_microseconds(static_cast<double>(totals.compute)),
      totals.in_bytes,
      totals.out_bytes,
      to_microseconds(static_cast<double>(totals.copying)),
      to_microseconds(static_cast<double>(totals.hidden)),
      stall(Stall::kDemanded),
      stall(Stall::kLate),
      stall(Stall::kMemory));
}

} // namespace

void replay_and_report(
    std::istream& in,
    const Machine& machine,
    at::cuda::lms::Policy& policy) {
  const Trace trace = read_trace(in);
  const Measured measured = measured_part(trace);
  try {
    const Totals totals = Simulation(trace, machine, policy).run(measured);
    const Traffic bound = belady(trace, machine.capacity, measured);
    const double floor = ordered_floor(trace, machine, measured);
    std::printf("{\"steps\": %zu, ", measured.steps);
    print_totals(totals);
    std::printf(
        ", \"bound_in_bytes\": %zu, \"bound_out_bytes\": %zu, "
        "\"ordered_us\": %.17g}\n",
        bound.in_bytes,
        bound.out_bytes,
        to_microseconds(floor));
  } catch (const OutOfMemory& error) {
    print_out_of_memory(error);
  }
}

Machine parse_machine(const char* const words[3]) {
  Machine machine;
  machine.capacity = std::stoull(words[0]);
  machine.in_bandwidth = std::stod(words[1]);
  machine.out_bandwidth = std::stod(words[2]);
  return machine;
}

} // namespace lms_replay
