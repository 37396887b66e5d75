#pragma once

#include <ATen/cuda/detail/LMSCoreHistory.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace at::cuda::lms {

// Between two uses a page is idle.
struct Interval {
  uint32_t begin = 0; // position of the use before
  uint32_t length = 0; // operators until the next use; 0: there is none
  uint32_t death = 0; // operators until the page dies, if length is 0
  bool is_endless = false; // neither is known
  bool is_evicted = false; // the plan's choice
  bool is_copied = true; // when it is evicted, not made again: as well
  bool is_after_write = false; // the use before wrote to it
  bool is_saved = false; // its page is written back while it stays: as well
  uint32_t away = 0; // operators after which its memory is needed then
  uint8_t gain = 0; // by making its bytes again, see Use
  Hint::Turn turn = Hint::Turn::kByPlan; // of its page to be evicted
  size_t bytes = 0;
  Page* page = nullptr; // on the host by the plan, or to be saved
};

// One cycle of a sequence that goes on for ever. Positions are operators of the
// cycle, 0 to n - 1; position n is 0 again.
struct Cycle {
  static constexpr uint32_t kNone = ~uint32_t{0};

  std::vector<Interval> intervals; // by position, then slot
  std::vector<uint32_t> starts; // by position: of its intervals
  std::vector<uint32_t> before; // by interval: the one that ends with its use
  std::vector<size_t> unmanaged; // by position, bytes
  std::vector<uint32_t> ns; // by position, see Operator

  uint32_t length() const {
    return static_cast<uint32_t>(starts.size());
  }
  uint32_t count() const {
    return static_cast<uint32_t>(intervals.size());
  }
  uint32_t slots(uint32_t position) const {
    return (position + 1 < length() ? starts[position + 1] : count()) -
        starts[position];
  }
  // The interval that began when the page got the bytes that it has when this
  // one ends, by a write or by a page-in.
  uint32_t first_of_same(uint32_t number) const;

  // Intervals are also numbered through.
  uint32_t number(uint32_t position, uint32_t slot) const {
    return starts[position] + slot;
  }
};

// Reads the cycle that ends with the latest operator out of the history, a part
// at a time. What happens meanwhile makes no difference to it.
class CycleReader {
 public:
  explicit CycleReader(const History& history);

  uint64_t end() const { // index of the cycle's last operator
    return end_;
  }
  uint64_t length() const {
    return lag_;
  }
  bool is_done() const {
    return next_ > end_;
  }
  // Operators that use as many pages as that, or one more. False if the history
  // has lost the next one.
  bool read(const History& history, uint64_t uses);
  // Without the history, when all is read.
  Cycle take();

 private:
  // How a use is connected with others of its page, as the history has it.
  struct Link {
    uint32_t previous = 0; // operators
    uint32_t previous_slot = 0;
    uint32_t next = 0; // operators
    uint32_t next_slot = 0;
    bool is_dead = false;
  };

  History::Slot slot_at_end(
      const History& history,
      uint64_t index,
      uint32_t number) const;
  void read_use(const History& history, uint32_t number);
  void find_before(uint32_t position, uint32_t slot);

  uint64_t lag_;
  uint64_t end_;
  uint64_t next_; // the operator to be read
  Cycle cycle_;
  std::vector<Link> links_; // by interval
};

} // namespace at::cuda::lms
