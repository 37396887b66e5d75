#include "trace.h"

#include <iterator>
#include <stdexcept>
#include <string>

namespace lms_replay {
namespace {

constexpr size_t kLearningSteps = 3;

class Words {
 public:
  explicit Words(std::istream& in) : in_(in) {}

  // False at the end of the trace.
  bool next(int64_t& word) {
    in_.read(reinterpret_cast<char*>(&word), sizeof word);
    if (in_.gcount() != 0 && in_.gcount() != sizeof word) {
      throw std::runtime_error("the packed trace ends within a word");
    }
    return in_.gcount() != 0;
  }
  int64_t operand() {
    int64_t word = 0;
    if (!next(word)) {
      throw std::runtime_error("the packed trace ends within an event");
    }
    return word;
  }

 private:
  std::istream& in_;
};

void read_operator(Words& words, Trace& trace) {
  TraceOperator op;
  op.name = static_cast<uint64_t>(words.operand());
  op.duration = words.operand();
  op.first_use = trace.uses.size();
  for (int64_t left = words.operand(); left > 0; --left) {
    const int64_t use = words.operand();
    trace.uses.push_back({static_cast<uint32_t>(use / 2), use % 2 != 0});
  }
  trace.operators.push_back(op);
}

} // namespace

Trace read_trace(std::istream& in) {
  Trace trace;
  Words words(in);
  for (int64_t word = 0; words.next(word);) {
    const auto kind = static_cast<EventKind>(word);
    size_t index = 0;
    switch (kind) {
      case EventKind::kAlloc:
        index = trace.bytes.size();
        trace.bytes.push_back(static_cast<size_t>(words.operand()));
        break;
      case EventKind::kFree:
        index = static_cast<size_t>(words.operand());
        break;
      case EventKind::kStep:
        break;
      case EventKind::kOperator:
        index = trace.operators.size();
        read_operator(words, trace);
        break;
      default:
        throw std::runtime_error("no such event: " + std::to_string(word));
    }
    trace.events.push_back({kind, index});
  }
  TraceOperator end;
  end.first_use = trace.uses.size();
  trace.operators.push_back(end);
  return trace;
}

Measured measured_part(const Trace& trace) {
  std::vector<size_t> steps;
  for (size_t i = 0; i < trace.events.size(); ++i) {
    if (trace.events[i].kind == EventKind::kStep) {
      steps.push_back(i);
    }
  }
  if (steps.size() <= kLearningSteps) {
    return {};
  }
  return {steps[kLearningSteps], steps.size() - kLearningSteps};
}

} // namespace lms_replay
