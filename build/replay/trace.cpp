#include "trace.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

namespace lms_replay {
namespace {

constexpr size_t kLearningSteps = 3;
constexpr size_t kTryingSteps = 13; // after these

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
  op.continues = words.operand() != 0;
  op.first_use = trace.uses.size();
  for (int64_t left = words.operand(); left > 0; --left) {
    const int64_t use = words.operand();
    trace.uses.push_back(
        {static_cast<uint32_t>(use / 4), (use & 1) != 0, (use & 2) != 0});
  }
  trace.operators.push_back(op);
}

// Appends events to a trace, and joins chunks where they fit.
class Joining {
 public:
  Joining(const Trace& from, size_t most) : from_(from), most_(most) {
    to_.bytes = from.bytes;
  }

  Trace run() {
    for (const Event& event : from_.events) {
      if (event.kind == EventKind::kAlloc) {
        allocations_.push_back(event);
      } else if (event.kind == EventKind::kOperator) {
        add_operator(event);
      } else {
        end_operator();
        add_allocations();
        to_.events.push_back(event);
      }
    }
    end_operator();
    add_allocations();
    to_.operators.emplace_back().first_use = to_.uses.size();
    return std::move(to_);
  }

 private:
  void add_operator(const Event& event) {
    const TraceOperator& op = from_.operators[event.index];
    size_t more = 0;
    for (const TraceUse& use : from_.uses_of(event.index)) {
      more += uses_.count(use.storage) > 0 ? 0 : from_.bytes[use.storage];
    }
    if (!op.continues || !is_open_ || bytes_ + more > most_) {
      end_operator();
      op_ = op;
      op_.duration = 0;
      is_open_ = true;
    }
    add_allocations();
    event_ = event;
    bytes_ += more;
    op_.duration += op.duration;
    for (const TraceUse& use : from_.uses_of(event.index)) {
      const auto [known, is_new] = uses_.try_emplace(use.storage, use);
      if (is_new) {
        order_.push_back(use.storage);
      }
      known->second.writes = known->second.writes || use.writes;
      known->second.again = known->second.again || use.again;
    }
  }

  void end_operator() {
    if (!is_open_) {
      return;
    }
    event_.index = to_.operators.size();
    to_.events.push_back(event_);
    op_.first_use = to_.uses.size();
    to_.operators.push_back(op_);
    for (const uint32_t storage : order_) {
      to_.uses.push_back(uses_.at(storage));
    }
    uses_.clear();
    order_.clear();
    bytes_ = 0;
    is_open_ = false;
  }

  void add_allocations() {
    to_.events.insert(
        to_.events.end(), allocations_.begin(), allocations_.end());
    allocations_.clear();
  }

  const Trace& from_;
  const size_t most_; // bytes that an operator uses
  Trace to_;
  // Since the last event that was added:
  std::vector<Event> allocations_;
  bool is_open_ = false; // there is an operator, the following:
  Event event_{EventKind::kOperator, 0, 0};
  TraceOperator op_;
  std::map<uint32_t, TraceUse> uses_; // by storage
  std::vector<uint32_t> order_; // of the uses
  size_t bytes_ = 0; // of the uses
};

} // namespace

Trace with_chunks_joined(const Trace& trace, size_t most) {
  return Joining(trace, most).run();
}

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
    constexpr size_t kFirstLine = 2; // the header is line 1
    trace.events.push_back({kind, index, kFirstLine + trace.events.size()});
  }
  TraceOperator end;
  end.first_use = trace.uses.size();
  trace.operators.push_back(end);
  return trace;
}

bool has_again(const Trace& trace) {
  return std::any_of(
      trace.uses.begin(), trace.uses.end(), [](const TraceUse& use) {
        return use.again;
      });
}

Measured measured_part(const Trace& trace, bool tries) {
  std::vector<size_t> steps;
  for (size_t i = 0; i < trace.events.size(); ++i) {
    if (trace.events[i].kind == EventKind::kStep) {
      steps.push_back(i);
    }
  }
  if (steps.size() <= kLearningSteps) {
    return {};
  }
  const bool has_tried = tries && steps.size() > kLearningSteps + kTryingSteps;
  const size_t first = kLearningSteps + (has_tried ? kTryingSteps : 0);
  return {steps[first], steps.size() - first};
}

} // namespace lms_replay
