// A file of the devices' work, one JSON object per line: {"device": 0,
// "engine": "compute", "stream": 1, "name": "aten::mm", "start": ns, "end":
// ns}. "engine" is compute, h2d, d2h, disk or collective; lines are in the
// order of "end". The name of what Large Model Support runs again begins with
// "again ".
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "simulation.h"

namespace simcuda {

class Timeline {
 public:
  // Ends the current file and begins another; "" begins none. False when it
  // cannot be written.
  bool open(const std::string& path);
  void write(const Interval& interval);

 private:
  struct Close {
    void operator()(std::FILE* file) const {
      std::fclose(file);
    }
  };
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace simcuda
