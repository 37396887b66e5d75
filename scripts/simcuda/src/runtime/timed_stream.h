// A stream in virtual time: it computes nothing and has no thread.
#pragma once

#include "stream.h"

namespace simcuda {

class TimedStream : public Stream {
 public:
  TimedStream(int device, bool implicit, int priority);

  bool reached(uint64_t number) const override;
  void wait(uint64_t number) override;
  void demand(uint64_t /*number*/) override {}
  void close() override {}

 private:
  void push(Task task) override;
  void push_stamp(std::shared_ptr<int64_t> when) override;
  void push_wait(const Mark& mark) override;
  uint64_t last() const override;

  const int id_;  // in the simulation
};

}  // namespace simcuda
