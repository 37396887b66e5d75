#include "bound.h"

#include <set>
#include <utility>

namespace lms_replay {
namespace {

constexpr size_t kNever = ~size_t{0};
constexpr size_t kBlockSize = 512; // bytes; memory is taken in multiples of it

struct NextUses {
  std::vector<size_t> after; // of each use: the storage's next one's operator
  std::vector<size_t> first; // of each storage
};

NextUses next_uses(const Trace& trace) {
  NextUses next;
  next.after.resize(trace.uses.size());
  next.first.assign(trace.bytes.size(), kNever);
  for (size_t op = trace.operator_count(); op-- > 0;) {
    const size_t begin = trace.operators[op].first_use;
    for (size_t i = begin; i < trace.operators[op + 1].first_use; ++i) {
      size_t& coming = next.first[trace.uses[i].storage];
      next.after[i] = coming;
      coming = op;
    }
  }
  return next;
}

class Belady {
 public:
  Belady(const Trace& trace, size_t capacity)
      : trace_(trace),
        capacity_(capacity),
        uses_(next_uses(trace)),
        pages_(trace.bytes.size()) {}

  Traffic run(const Measured& measured) {
    for (size_t i = 0; i < trace_.events.size(); ++i) {
      if (i == measured.first_event) {
        traffic_ = {};
      }
      play(trace_.events[i]);
    }
    return traffic_;
  }

 private:
  struct State {
    bool is_resident = false;
    bool is_clean = false;
    size_t next = kNever;
  };

  void play(const Event& event) {
    switch (event.kind) {
      case EventKind::kAlloc:
        pages_[event.index].next = uses_.first[event.index];
        enter(event.index);
        make_room();
        break;
      case EventKind::kFree:
        drop(event.index);
        break;
      case EventKind::kOperator:
        run_operator(event.index);
        break;
      case EventKind::kStep:
        break;
    }
  }

  void run_operator(size_t op) {
    for (const TraceUse& use : trace_.uses_of(op)) {
      if (!pages_[use.storage].is_resident) {
        traffic_.in_bytes += trace_.bytes[use.storage];
        enter(use.storage);
      }
    }
    // Those that the operator uses are the last that would be evicted.
    make_room();
    const TraceUse* const begin = trace_.uses.data();
    for (const TraceUse& use : trace_.uses_of(op)) {
      State& page = pages_[use.storage];
      by_next_use_.erase({page.next, use.storage});
      page.next = uses_.after[static_cast<size_t>(&use - begin)];
      page.is_clean = page.is_clean && !use.writes;
      if (page.is_resident) {
        by_next_use_.insert({page.next, use.storage});
      }
    }
    ++now_;
  }

  void make_room() {
    while (taken_ > capacity_ && by_next_use_.rbegin()->first > now_) {
      const size_t page = by_next_use_.rbegin()->second;
      State& state = pages_[page];
      if (!state.is_clean && state.next != kNever) {
        traffic_.out_bytes += trace_.bytes[page];
        state.is_clean = true;
      }
      drop(page);
    }
  }

  void enter(size_t page) {
    pages_[page].is_resident = true;
    by_next_use_.insert({pages_[page].next, page});
    taken_ += size_of(page);
  }

  void drop(size_t page) {
    if (pages_[page].is_resident) {
      pages_[page].is_resident = false;
      by_next_use_.erase({pages_[page].next, page});
      taken_ -= size_of(page);
    }
  }

  size_t size_of(size_t page) const {
    return (trace_.bytes[page] + kBlockSize - 1) / kBlockSize * kBlockSize;
  }

  const Trace& trace_;
  const size_t capacity_;
  const NextUses uses_;
  std::vector<State> pages_;
  std::set<std::pair<size_t, size_t>> by_next_use_; // of what is resident
  size_t taken_ = 0; // bytes
  size_t now_ = 0; // the operator that comes next
  Traffic traffic_;
};

} // namespace

Traffic belady(const Trace& trace, size_t capacity, const Measured& measured) {
  return Belady(trace, capacity).run(measured);
}

} // namespace lms_replay
