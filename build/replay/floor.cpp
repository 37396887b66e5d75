#include "bound.h"

#include <algorithm>

namespace lms_replay {
namespace {

constexpr double kSecond = 1e12; // picoseconds

// Cuts that are tried in a step: every operator of up to 4,096, fewer of more,
// where each costs more.
size_t cuts_in_step(size_t operators) {
  constexpr size_t kWork = size_t{1} << 24;
  constexpr size_t kLeast = 256;
  return std::min(operators, std::max(kLeast, kWork / operators));
}

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

// Of each storage, the operator that its allocation comes before.
std::vector<size_t> births(const Trace& trace) {
  std::vector<size_t> found(trace.bytes.size());
  size_t op = 0;
  for (const Event& event : trace.events) {
    if (event.kind == EventKind::kAlloc) {
      found[event.index] = op;
    }
    op += event.kind == EventKind::kOperator ? 1 : 0;
  }
  return found;
}

// Of each use, whether the storage is not used again.
std::vector<bool> last_uses(const Trace& trace) {
  std::vector<bool> found(trace.uses.size());
  std::vector<bool> is_used(trace.bytes.size());
  for (size_t i = trace.uses.size(); i-- > 0;) {
    found[i] = !is_used[trace.uses[i].storage];
    is_used[trace.uses[i].storage] = true;
  }
  return found;
}

// Bytes of storages that cannot all be on the device at one moment: what is
// over its capacity is copied in the part. docs/traces.md gives the reasons.
struct Need {
  size_t in = 0; // when the part starts: used in it
  size_t out = 0; // when it ends: used next, or written in it for later
};

// What the parts of a trace that begin with one operator need.
class Part {
 public:
  explicit Part(const Trace& trace)
      : trace_(trace),
        births_(births(trace)),
        last_uses_(last_uses(trace)),
        used_in_(trace.bytes.size()),
        written_in_(trace.bytes.size()) {}

  void begin(size_t op) {
    begin_ = end_ = op;
    ++number_;
    next_ = 0;
    need_ = {};
  }
  // Makes it end before `op`, where it ended earlier.
  const Need& extend(size_t op) {
    need_.out -= next_;
    for (; end_ < op; ++end_) {
      run(end_);
    }
    next_ = end_ == trace_.operator_count() ? 0 : bytes_used_next();
    need_.out += next_;
    return need_;
  }

 private:
  void run(size_t op) {
    for (size_t i = trace_.operators[op].first_use;
         i < trace_.operators[op + 1].first_use;
         ++i) {
      const TraceUse& use = trace_.uses[i];
      const size_t bytes = trace_.bytes[use.storage];
      if (births_[use.storage] <= begin_ && used_in_[use.storage] != number_) {
        used_in_[use.storage] = number_;
        need_.in += bytes;
      }
      size_t& written = written_in_[use.storage];
      if (use.writes && written != number_) {
        written = number_;
        need_.out += bytes;
      }
      if (last_uses_[i] && written == number_) {
        need_.out -= bytes;
      }
    }
  }
  // Beside what was written in the part.
  size_t bytes_used_next() const {
    size_t bytes = 0;
    for (const TraceUse& use : trace_.uses_of(end_)) {
      if (written_in_[use.storage] != number_) {
        bytes += trace_.bytes[use.storage];
      }
    }
    return bytes;
  }

  const Trace& trace_;
  const std::vector<size_t> births_;
  const std::vector<bool> last_uses_;
  size_t number_ = 0; // of the part
  std::vector<size_t> used_in_; // of each storage, the last part
  std::vector<size_t> written_in_;
  size_t begin_ = 0;
  size_t end_ = 0;
  size_t next_ = 0; // bytes of need_.out that the next operator uses
  Need need_;
};

class Floor {
 public:
  Floor(const Trace& trace, const Machine& machine, const Measured& measured)
      : trace_(trace), machine_(machine) {
    const std::vector<size_t> steps = boundaries(trace, measured);
    for (size_t i = 0; i + 1 < steps.size(); ++i) {
      const size_t count = steps[i + 1] - steps[i];
      const size_t cuts = count == 0 ? 0 : cuts_in_step(count);
      for (size_t k = 0; k < cuts; ++k) {
        cuts_.push_back(steps[i] + k * count / cuts);
      }
      longest_part_ = std::max(longest_part_, count);
    }
    cuts_.push_back(steps.back());
  }

  // The longest chain of parts.
  double longest() const {
    Part part(trace_);
    std::vector<double> times(cuts_.size()); // from the first cut on
    for (size_t i = 0; i + 1 < cuts_.size(); ++i) {
      part.begin(cuts_[i]);
      double compute = 0;
      for (size_t j = i + 1;
           j < cuts_.size() && cuts_[j] - cuts_[i] <= longest_part_;
           ++j) {
        for (size_t op = cuts_[j - 1]; op < cuts_[j]; ++op) {
          compute += static_cast<double>(trace_.operators[op].duration);
        }
        const double copies = copy_time(part.extend(cuts_[j]));
        times[j] = std::max(times[j], times[i] + std::max(compute, copies));
      }
    }
    return times.back();
  }

 private:
  // Of what is over the capacity; and of what is over that and the host's
  // memory together, which has to come from the disk or to go there.
  double copy_time(const Need& need) const {
    const double in = over(need.in, machine_.capacity);
    const double out = over(need.out, machine_.capacity);
    const double link = std::max(
        {in / machine_.in_bandwidth,
         out / machine_.out_bandwidth,
         (in + out) / machine_.both_bandwidth});
    if (machine_.host == 0 || machine_.disk == 0) {
      return kSecond * link;
    }
    const size_t both = machine_.capacity + machine_.host;
    const double disk = over(need.in, both) / machine_.read_bandwidth +
        over(need.out, both) / machine_.write_bandwidth;
    return kSecond * std::max(link, disk);
  }
  static double over(size_t need, size_t capacity) {
    return static_cast<double>(need - std::min(need, capacity));
  }

  const Trace& trace_;
  const Machine& machine_;
  std::vector<size_t> cuts_; // operators, and the end
  size_t longest_part_ = 0; // as the longest step: in operators
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
  return Floor(trace, machine, measured).longest();
}

} // namespace lms_replay
