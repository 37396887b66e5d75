#include "config.h"

#include <unistd.h>

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <stdexcept>

namespace simcuda {
namespace {

[[noreturn]] void refuse(const char* name, const std::string& value,
                         const char* expected) {
  std::fprintf(stderr, "simcuda: %s=%s is not valid: expected %s\n", name,
               value.c_str(), expected);
  std::fflush(stderr);
  _exit(2);
}

std::string get(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

uint64_t get_size(const char* name, const char* otherwise) {
  const std::string text = get(name, otherwise);
  const auto size = parse_size(text);
  if (!size) {
    refuse(name, text, "a number of bytes such as 64M or 2G");
  }
  return *size;
}

template <typename T>
T get_choice(const char* name, const char* otherwise,
             const std::map<std::string, T>& choices, const char* expected) {
  const std::string text = get(name, otherwise);
  const auto found = choices.find(text);
  if (found == choices.end()) {
    refuse(name, text, expected);
  }
  return found->second;
}

Config read() {
  Config c;
  c.capacity = get_size("SIMCUDA_CAPACITY", "1G");
  if (c.capacity == 0) {
    refuse("SIMCUDA_CAPACITY", "0", "more than no memory");
  }
  const uint64_t devices = get_size("SIMCUDA_DEVICES", "1");
  if (devices < 1 || devices > 16) {
    refuse("SIMCUDA_DEVICES", std::to_string(devices), "1 to 16");
  }
  c.devices = static_cast<int>(devices);
  c.kernels = get_choice<Kernels>("SIMCUDA_KERNELS", "inline",
                                  {{"inline", Kernels::Inline},
                                   {"async", Kernels::Async},
                                   {"timed", Kernels::Timed}},
                                  "inline, async or timed");
  c.copy_bandwidth = get_size("SIMCUDA_COPY_BANDWIDTH", "0");
  c.schedule = get_choice<Schedule>("SIMCUDA_SCHEDULE", "none",
                                    {{"none", Schedule::AsTheyCome},
                                     {"early", Schedule::Early},
                                     {"late", Schedule::Late},
                                     {"split", Schedule::Split}},
                                    "early, late or split");
  c.poison = get_choice<int>("SIMCUDA_POISON", "1",
                             {{"0", 0}, {"1", 1}, {"2", 2}}, "0, 1 or 2");
  if (c.kernels == Kernels::Timed) {
    c.poison = 0;  // there is no data
  }
  c.shared = get("SIMCUDA_SHARED", "");
  c.card = get("SIMCUDA_CARD", "");
  c.timeline = get("SIMCUDA_TIMELINE", "");
  c.driver_lock = get_choice<bool>("SIMCUDA_DRIVER_LOCK", "0",
                                   {{"0", false}, {"1", true}}, "0 or 1");
  c.cublas = get_choice<bool>("SIMCUDA_CUBLAS", "0",
                              {{"0", false}, {"1", true}}, "0 or 1");
  c.faults = get("SIMCUDA_FAULTS", "");
  return c;
}

}  // namespace

bool Config::delays(TaskKind kind) const {
  switch (schedule) {
    case Schedule::AsTheyCome:
      return false;
    case Schedule::Early:
      return kind == TaskKind::Kernel;
    case Schedule::Late:
      return kind == TaskKind::Copy || kind == TaskKind::CopyRest;
    case Schedule::Split:
      return kind == TaskKind::CopyRest;
  }
  return false;
}

const Config& config() {
  static const Config* c = new Config(read());
  return *c;
}

std::optional<uint64_t> parse_size(const std::string& text) {
  size_t digits = 0;
  uint64_t number = 0;
  while (digits < text.size() && digits < 18 && std::isdigit(text[digits])) {
    number = number * 10 + static_cast<uint64_t>(text[digits++] - '0');
  }
  static const std::map<std::string, int> shifts = {
      {"", 0}, {"K", 10}, {"M", 20}, {"G", 30}, {"T", 40}};
  const auto shift = shifts.find(text.substr(digits));
  if (digits == 0 || shift == shifts.end() ||
      number > (UINT64_MAX >> shift->second)) {
    return std::nullopt;
  }
  return number << shift->second;
}

}  // namespace simcuda
