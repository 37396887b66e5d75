#include "bound.h"

#include <algorithm>

namespace lms_replay {
namespace {

constexpr double kSecond = 1e12; // picoseconds

// Sums of many ranges of operators at once.
class Ranges {
 public:
  explicit Ranges(size_t size) : differences_(size + 1) {}

  // Adds to the operators in [begin, end).
  void add(size_t begin, size_t end, size_t bytes) {
    if (begin < end) {
      differences_[begin] += static_cast<int64_t>(bytes);
      differences_[end] -= static_cast<int64_t>(bytes);
    }
  }
  std::vector<int64_t> sums() const {
    std::vector<int64_t> sums(differences_);
    for (size_t i = 1; i < sums.size(); ++i) {
      sums[i] += sums[i - 1];
    }
    return sums;
  }

 private:
  std::vector<int64_t> differences_;
};

// The operators at which steps begin, from the first measured one on, and the
// end.
std::vector<size_t> boundaries(const Trace& trace, const Measured& measured) {
  std::vector<size_t> found;
  size_t op = 0;
  for (size_t i = 0; i < trace.events.size(); ++i) {
    const EventKind kind = trace.events[i].kind;
    if (i == measured.first_event ||
        (i > measured.first_event && kind == EventKind::kStep)) {
      found.push_back(op);
    }
    op += kind == EventKind::kOperator ? 1 : 0;
  }
  found.push_back(op);
  return found;
}

// For a step [s, e) and every operator t of it, bytes of storages that cannot
// all be on the device at one moment: what is over its capacity is copied in
// the part before t or in the part from t on. docs/traces.md gives the reasons.
struct Need {
  std::vector<int64_t> out_before; // at t: used now, or made since s for later
  std::vector<int64_t> in_before; // at s: used from s up to t
  std::vector<int64_t> in_after; // at t: used from t up to e
  std::vector<int64_t> out_after; // at e: made since t, for later steps
};

class Needs {
 public:
  Needs(const Trace& trace, const std::vector<size_t>& steps)
      : trace_(trace),
        steps_(steps),
        out_before_(trace.operator_count()),
        in_before_(trace.operator_count()),
        in_after_(trace.operator_count()),
        out_after_(trace.operator_count()),
        free_from_(trace.bytes.size()),
        last_write_(trace.bytes.size()) {}

  Need run() {
    for (const Event& event : trace_.events) {
      if (event.kind == EventKind::kAlloc) {
        free_from_[event.index] = now_;
        last_write_[event.index] = now_;
      } else if (event.kind == EventKind::kOperator) {
        for (const TraceUse& use : trace_.uses_of(now_)) {
          add(use);
        }
        ++now_;
      }
    }
    return {
        out_before_.sums(),
        in_before_.sums(),
        in_after_.sums(),
        out_after_.sums()};
  }

 private:
  void add(const TraceUse& use) {
    const size_t bytes = trace_.bytes[use.storage];
    size_t& free_from = free_from_[use.storage];
    size_t& written = last_write_[use.storage];
    const size_t begin = begin_of_step(now_);
    out_before_.add(free_from, std::min(now_, end_of_step(written)), bytes);
    out_before_.add(now_, now_ + 1, bytes);
    if (free_from <= begin && written < begin) {
      in_before_.add(now_, end_of_step(now_), bytes);
    }
    in_after_.add(std::max(free_from, begin), now_ + 1, bytes);
    if (written < begin && free_from <= end_of_step(written)) {
      // Excludes the writing operator itself, for an allocation comes before.
      out_after_.add(begin_of_step(written), written, bytes);
    }
    free_from = now_ + 1;
    if (use.writes) {
      written = now_;
    }
  }

  // Operators before the first step that counts are in no step.
  size_t begin_of_step(size_t op) const {
    const auto next = std::upper_bound(steps_.begin(), steps_.end(), op);
    return next == steps_.begin() ? op : *std::prev(next);
  }
  size_t end_of_step(size_t op) const {
    const auto next = std::upper_bound(steps_.begin(), steps_.end(), op);
    return next == steps_.begin() || next == steps_.end() ? op : *next;
  }

  const Trace& trace_;
  const std::vector<size_t>& steps_;
  Ranges out_before_;
  Ranges in_before_;
  Ranges in_after_;
  Ranges out_after_;
  // Of each storage: from which operator on it may have been away.
  std::vector<size_t> free_from_;
  std::vector<size_t> last_write_;
  size_t now_ = 0;
};

class Floor {
 public:
  Floor(const Trace& trace, const Machine& machine, const Measured& measured)
      : trace_(trace),
        machine_(machine),
        steps_(boundaries(trace, measured)),
        need_(Needs(trace, steps_).run()) {}

  double all_steps() const {
    double sum = 0;
    for (size_t i = 0; i + 1 < steps_.size(); ++i) {
      sum += of_step(steps_[i], steps_[i + 1]);
    }
    return sum;
  }

 private:
  double of_step(size_t begin, size_t end) const {
    double after = 0;
    for (size_t op = begin; op < end; ++op) {
      after += static_cast<double>(trace_.operators[op].duration);
    }
    double before = 0;
    double longest = 0;
    for (size_t op = begin; op < end; ++op) {
      const double first = std::max(
          before, copy_time(need_.in_before[op], need_.out_before[op]));
      const double second =
          std::max(after, copy_time(need_.in_after[op], need_.out_after[op]));
      longest = std::max(longest, first + second);
      const auto duration = static_cast<double>(trace_.operators[op].duration);
      before += duration;
      after -= duration;
    }
    return longest;
  }

  // Of what is over the capacity of the storages that are needed.
  double copy_time(int64_t in_need, int64_t out_need) const {
    const double in = over(in_need);
    const double out = over(out_need);
    return kSecond *
        std::max(
               {in / machine_.in_bandwidth,
                out / machine_.out_bandwidth,
                (in + out) / machine_.both_bandwidth});
  }
  double over(int64_t need) const {
    const int64_t bytes = need - static_cast<int64_t>(machine_.capacity);
    return static_cast<double>(std::max<int64_t>(bytes, 0));
  }

  const Trace& trace_;
  const Machine& machine_;
  const std::vector<size_t> steps_; // where they begin, and the end
  const Need need_;
};

} // namespace

Time compute_time(const Trace& trace, const Measured& measured) {
  Time sum = 0;
  for (size_t i = measured.first_event; i < trace.events.size(); ++i) {
    const Event& event = trace.events[i];
    if (event.kind == EventKind::kOperator) {
      sum += trace.operators[event.index].duration;
    }
  }
  return sum;
}

double ordered_floor(
    const Trace& trace,
    const Machine& machine,
    const Measured& measured) {
  return Floor(trace, machine, measured).all_steps();
}

} // namespace lms_replay
