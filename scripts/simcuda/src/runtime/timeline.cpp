#include "timeline.h"

namespace simcuda {
namespace {

const char* engine_name(Part part) {
  switch (part) {
    case Part::Compute:
      return "compute";
    case Part::HostToDevice:
      return "h2d";
    case Part::DeviceToHost:
      return "d2h";
    case Part::Disk:
      return "disk";
    case Part::Collective:
      return "collective";
  }
  return "";
}

}  // namespace

bool Timeline::open(const std::string& path) {
  file_.reset(path.empty() ? nullptr : std::fopen(path.c_str(), "w"));
  return path.empty() || file_ != nullptr;
}

// Names are those of operators and functions: nothing in them needs escaping.
void Timeline::write(const Interval& i) {
  if (file_) {
    std::fprintf(file_.get(),
                 "{\"device\": %d, \"engine\": \"%s\", \"stream\": %d, "
                 "\"name\": \"%s\", \"start\": %lld, \"end\": %lld}\n",
                 i.device, engine_name(i.part), i.stream, i.name,
                 static_cast<long long>(i.start),
                 static_cast<long long>(i.end));
  }
}

}  // namespace simcuda
