#include "timeline.h"

#include "recipes.h"

#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <iterator>
#include <utility>

namespace lms_replay {
namespace {

using at::cuda::lms::Departure;
using at::cuda::lms::DiskTransfer;
using at::cuda::lms::HostPieces;
using at::cuda::lms::PageEntry;

constexpr Time kNanosecond = 1000; // picoseconds

size_t number_of(const PageEntry& page) {
  return static_cast<const TracePage&>(page).number;
}

// An index, or -1 for none.
long long shown(size_t index) {
  return index == kNone ? -1 : static_cast<long long>(index);
}

} // namespace

// --- what is told ---

void Timeline::began_step(Time now) {
  steps_.push_back(now);
}

void Timeline::ended(Time now) {
  end_ = now;
}

void Timeline::ran(size_t op, Interval when, size_t made) {
  operators_.push_back({op, when, made});
}

void Timeline::waited(size_t cause, Interval when, CopyId copy) {
  waits_.push_back({cause, when, copy, operators_.size()});
}

void Timeline::copied(
    const PageEntry& page,
    Direction direction,
    bool is_ahead,
    const void* memory,
    const HostPieces* host) {
  const size_t storage = number_of(page);
  const CopyId copy = copies_.size();
  copies_.push_back({storage, direction, is_ahead, operators_.size()});
  const Moment begin{0, copy};
  if (memory) {
    device_stays_[memory] = on_device_.size();
    on_device_.push_back({storage, begin});
  }
  if (host) {
    host_stays_[host->front().begin] = on_host_.size();
    on_host_.push_back({storage, begin});
  }
}

void Timeline::transferred(const DiskTransfer& transfer, Interval when) {
  const bool is_write = transfer.kind == DiskTransfer::Kind::kWrite;
  const size_t storage = number_of(*transfer.page);
  transfers_.push_back({storage, is_write, when});
  if (!is_write) {
    host_stays_[transfer.host.front().begin] = on_host_.size();
    on_host_.push_back({storage, {when.begin}});
  }
}

void Timeline::left(
    const PageEntry& page,
    Departure how,
    Time now,
    size_t room) {
  if (how == Departure::kDropped) {
    drops_.push_back({number_of(page), now, room, operators_.size()});
  } else if (how == Departure::kCopied) { // by the copy that was told of last
    const CopyId copy = copies_.size() - 1;
    copies_[copy].room = room;
    copies_[copy].leaves = true;
    const auto stay = device_stays_.find(page.memory.get());
    if (stay != device_stays_.end()) {
      on_device_[stay->second].end = {0, copy};
    }
  }
}

// --- memory ---

void Timeline::took(size_t storage, const void* memory, Time now) {
  device_stays_[memory] = on_device_.size();
  on_device_.push_back({storage, {now}});
}

void Timeline::gave_back(const void* memory, Time now) {
  const auto stay = device_stays_.find(memory);
  if (stay == device_stays_.end()) {
    return; // an operator did not get all that it wanted
  }
  Moment& end = on_device_[stay->second].end;
  if (end.copy == kNone) {
    end = {now};
  }
  device_stays_.erase(stay);
}

void Timeline::took_small(size_t storage, Time now) {
  small_stays_[storage] = on_device_.size();
  on_device_.push_back({storage, {now}});
}

void Timeline::gave_back_small(size_t storage, Time now) {
  const auto stay = small_stays_.find(storage);
  on_device_[stay->second].end = {now};
  small_stays_.erase(stay);
}

void Timeline::gave_back_host(const HostPieces& host, Moment when) {
  const auto stay = host_stays_.find(host.front().begin);
  if (stay != host_stays_.end()) {
    on_host_[stay->second].end = when;
    host_stays_.erase(stay);
  }
}

// --- what is asked ---

size_t Timeline::steps() const {
  return std::max<size_t>(steps_.size(), 1);
}

// Of one step.
class Timeline::Printer {
 public:
  Printer(const Timeline& timeline, const Link& link, size_t step)
      : of_(timeline), link_(link) {
    const auto& steps = timeline.steps_;
    part_.begin = steps.empty() ? 0 : steps[step];
    part_.end = step + 1 < steps.size() ? steps[step + 1] : timeline.end_;
    const auto& ran = timeline.operators_;
    first_ = static_cast<size_t>(std::distance(
        ran.begin(),
        std::lower_bound(
            ran.begin(), ran.end(), part_.begin, [](const Ran& op, Time time) {
              return op.when.begin < time;
            })));
  }

  void print(size_t step) {
    std::printf(
        R"({"step": %zu, "steps": %zu, "ns": %lld)",
        step,
        of_.steps(),
        nanoseconds(part_.end));
    print_list("operators", of_.operators_, [this](const Ran& ran, size_t) {
      return ran.when.begin >= part_.begin && ran.when.begin < part_.end &&
          row(
                 {static_cast<long long>(of_.lines_[ran.op]),
                  nanoseconds(ran.when.begin),
                  nanoseconds(ran.when.end),
                  shown(ran.made)});
    });
    print_list("waits", of_.waits_, [this](const Waited& wait, size_t) {
      return is_inside(wait.when) &&
          row(
                 {static_cast<long long>(wait.cause),
                  nanoseconds(wait.when.begin),
                  nanoseconds(wait.when.end),
                  shown(wait.copy),
                  operator_here(wait.before)});
    });
    print_list("copies", of_.copies_, [this](const Copied& copy, size_t id) {
      const Interval when = link_.interval_of(id);
      return is_inside(when) &&
          row(
                 {static_cast<long long>(id),
                  static_cast<long long>(copy.direction),
                  static_cast<long long>(copy.storage),
                  nanoseconds(when.begin),
                  nanoseconds(when.end),
                  copy.is_ahead ? 1 : 0,
                  copy.leaves ? 1 : 0,
                  static_cast<long long>(copy.room),
                  operator_here(copy.used_for)});
    });
    print_list(
        "disk", of_.transfers_, [this](const Transferred& transfer, size_t) {
          return is_inside(transfer.when) &&
              row(
                     {transfer.is_write ? 1 : 0,
                      static_cast<long long>(transfer.storage),
                      nanoseconds(transfer.when.begin),
                      nanoseconds(transfer.when.end)});
        });
    print_list("drops", of_.drops_, [this](const Dropped& drop, size_t) {
      return is_inside({drop.when, drop.when}) &&
          row(
                 {static_cast<long long>(drop.storage),
                  nanoseconds(drop.when),
                  static_cast<long long>(drop.room),
                  operator_here(drop.used_for)});
    });
    print_stays("device", of_.on_device_);
    print_stays("host", of_.on_host_);
    std::printf("}");
  }

 private:
  template <class List, class PrintRow>
  void print_list(const char* name, const List& list, PrintRow print_row) {
    std::printf(",\n\"%s\": [", name);
    is_first_ = true;
    for (size_t i = 0; i < list.size(); ++i) {
      print_row(list[i], i);
    }
    std::printf("]");
  }

  void print_stays(const char* name, const std::vector<Stay>& stays) {
    print_list(name, stays, [this](const Stay& stay, size_t) {
      Interval when{stay.begin.time, stay.end.time};
      if (stay.begin.copy != kNone) {
        const Interval copy = link_.interval_of(stay.begin.copy);
        when.begin = std::max(when.begin, copy.begin);
      }
      if (stay.end.copy != kNone) {
        const Interval copy = link_.interval_of(stay.end.copy);
        when.end = std::max(when.end, copy.end);
      }
      return is_inside(when) &&
          row(
                 {static_cast<long long>(stay.storage),
                  nanoseconds(std::max(when.begin, part_.begin)),
                  nanoseconds(std::min(when.end, part_.end))});
    });
  }

  bool row(std::initializer_list<long long> numbers) {
    std::printf(is_first_ ? "[" : ",\n[");
    is_first_ = false;
    const char* separator = "";
    for (const long long number : numbers) {
      std::printf("%s%lld", separator, number);
      separator = ",";
    }
    std::printf("]");
    return true;
  }

  bool is_inside(Interval when) const {
    return when.end >= part_.begin && when.begin < part_.end;
  }
  long long nanoseconds(Time time) const {
    return (time - part_.begin) / kNanosecond;
  }
  // By its place among those that are printed: -1 for one before, and as many
  // as there are, or more, for one after.
  long long operator_here(size_t op) const {
    return std::max<long long>(
        static_cast<long long>(op) - static_cast<long long>(first_), -1);
  }

  const Timeline& of_;
  const Link& link_;
  Interval part_{};
  size_t first_ = 0; // of the operators
  bool is_first_ = true; // of the rows of a list
};

void Timeline::print(const Link& link, size_t step) const {
  step = std::min(step, steps() - 1);
  Printer(*this, link, step).print(step);
}

Timeline::Timeline(const Trace& trace) {
  for (const Event& event : trace.events) {
    if (event.kind == EventKind::kOperator) {
      lines_.push_back(event.line);
    }
  }
}

} // namespace lms_replay
