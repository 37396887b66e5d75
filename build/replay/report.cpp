#include "report.h"

#include "bound.h"

#include <cstdio>

namespace lms_replay {
namespace {

double to_microseconds(double time) {
  return time / 1e6;
}

void print_bounds(
    const Trace& trace,
    const Machine& machine,
    const Measured& measured) {
  const Traffic bound = belady(trace, machine.capacity, measured);
  const auto compute = static_cast<double>(compute_time(trace, measured));
  std::printf(
      "\"steps\": %zu, \"compute_us\": %.17g, \"bound_in_bytes\": %zu, "
      "\"bound_out_bytes\": %zu, \"ordered_us\": %.17g",
      measured.steps,
      to_microseconds(compute),
      bound.in_bytes,
      bound.out_bytes,
      to_microseconds(ordered_floor(trace, machine, measured)));
}

void print_totals(const Totals& totals) {
  auto stall = [&totals](Stall cause) {
    const Time time = totals.stalls[static_cast<size_t>(cause)];
    return to_microseconds(static_cast<double>(time));
  };
  std::printf(
      ", \"time_us\": %.17g, \"in_bytes\": %zu, \"out_bytes\": %zu, "
      "\"moved_bytes\": %zu, \"read_bytes\": %zu, \"written_bytes\": %zu, "
      "\"made_bytes\": %zu, \"making_us\": %.17g, "
      "\"copying_us\": %.17g, \"hidden_us\": %.17g, "
      "\"demanded_us\": %.17g, \"late_us\": %.17g, \"memory_us\": %.17g, "
      "\"host_us\": %.17g",
      to_microseconds(static_cast<double>(totals.time)),
      totals.in_bytes,
      totals.out_bytes,
      totals.moved_bytes,
      totals.read_bytes,
      totals.written_bytes,
      totals.made_bytes,
      to_microseconds(static_cast<double>(totals.making)),
      to_microseconds(static_cast<double>(totals.copying)),
      to_microseconds(static_cast<double>(totals.hidden)),
      stall(Stall::kDemanded),
      stall(Stall::kLate),
      stall(Stall::kMemory),
      stall(Stall::kHost));
}

void print_out_of_memory(const OutOfMemory& error) {
  std::printf(
      ", \"out_of_memory\": {\"line\": %zu, \"wanted_bytes\": %zu, "
      "\"missing_bytes\": %zu}",
      error.line,
      error.wanted,
      error.missing);
}

} // namespace

void replay_and_report(
    std::istream& in,
    const Machine& machine,
    const at::cuda::lms::PolicyKind* policy,
    std::optional<size_t> step) {
  const Trace trace = read_trace(in);
  const bool tries = policy && policy->traits.makes_again && has_again(trace);
  const Measured measured = measured_part(trace, tries);
  std::printf("{");
  print_bounds(trace, machine, measured);
  if (policy) {
    try {
      const Trace joined = with_chunks_joined(
          trace, machine.capacity / at::cuda::lms::kChunksInRoom);
      Timeline timeline(joined);
      Simulation simulation(
          joined, machine, *policy, step ? &timeline : nullptr);
      print_totals(simulation.run(measured_part(joined, tries)));
      if (step) {
        std::printf(", \"timeline\": ");
        timeline.print(simulation.link(), *step);
      }
    } catch (const OutOfMemory& error) {
      print_out_of_memory(error);
    }
  }
  std::printf("}\n");
}

} // namespace lms_replay
