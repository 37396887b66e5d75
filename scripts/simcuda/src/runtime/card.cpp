#include "card.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "config.h"

namespace simcuda {
namespace {

[[noreturn]] void refuse(const std::string& why) {
  std::fprintf(stderr, "simcuda: SIMCUDA_CARD: %s\n", why.c_str());
  std::fflush(stderr);
  _exit(2);
}

// The text's values by name; what is asked for and missing ends the process.
class Values {
 public:
  explicit Values(const std::string& text) {
    std::istringstream items(text);
    for (std::string item; std::getline(items, item, ',');) {
      const size_t equals = item.find('=');
      if (equals == std::string::npos) {
        refuse("'" + item + "' is not name=value");
      }
      values_[item.substr(0, equals)] = item.substr(equals + 1);
    }
  }

  std::string text(const std::string& name) const {
    const auto found = values_.find(name);
    if (found == values_.end()) {
      refuse(name + " is missing: set it with simcuda.environment(card=...)");
    }
    return found->second;
  }

  double number(const std::string& name) const {
    const std::string value = text(name);
    double number = 0;
    const char* end = value.data() + value.size();
    const auto parsed = std::from_chars(value.data(), end, number);
    if (parsed.ec != std::errc() || parsed.ptr != end || !(number >= 0)) {
      refuse(name + "=" + value + " is not a number");
    }
    return number;
  }

  // What must not be zero, since work is divided by it.
  double rate(const std::string& name) const {
    const double value = number(name);
    if (value == 0) {
      refuse(name + " is zero");
    }
    return value;
  }

  // Names that begin with the prefix, without it.
  std::map<std::string, double> group(const std::string& prefix) const {
    std::map<std::string, double> found;
    for (const auto& [name, value] : values_) {
      if (name.rfind(prefix, 0) == 0) {
        found[name.substr(prefix.size())] = number(name);
      }
    }
    return found;
  }

 private:
  std::map<std::string, std::string> values_;
};

Time rounded(double nanoseconds) {
  return static_cast<Time>(std::llround(nanoseconds));
}

double seconds_to_ns(double seconds) {
  return seconds * 1e9;
}

// In the order of SimcudaRate.
constexpr std::array<const char*, SIMCUDA_RATES> kRates = {
    "fp64", "fp32", "tf32", "fp16", "bf16", "int8"};

}  // namespace

Card::Card(const std::string& text) {
  const Values values(text);
  name = values.text("name");
  major = static_cast<int>(values.number("major"));
  minor = static_cast<int>(values.number("minor"));
  processors = static_cast<int>(values.number("processors"));
  for (size_t i = 0; i < kRates.size(); ++i) {
    rates_[i] = values.rate(kRates[i]);
  }
  bandwidth_ = values.rate("bandwidth");
  host_bandwidth_ = values.rate("host_bandwidth");
  page_locked_ = {values.rate("h2d"), values.rate("d2h")};
  pageable_ = {values.rate("pageable_h2d"), values.rate("pageable_d2h")};
  const double sum = page_locked_.in + page_locked_.out;
  sharing.together = std::min(1.0, values.rate("duplex") / sum);
  sharing.collectives_on_link = values.number("collectives_on_link") != 0;
  collective_ = values.rate("collective");
  disk_read_ = values.rate("disk_read");
  disk_write_ = values.rate("disk_write");
  launch_ns_ = values.number("launch_ns");
  copy_ns_ = values.number("copy_ns");
  collective_ns_ = values.number("collective_ns");
  operation_ns_ = values.number("operator_ns");
  call_ns_ = values.number("call_ns");
  calls_ = values.group("call_ns.");
  page_clear_ns_per_byte_ = values.number("page_clear_ns_per_byte");
  page_lock_ns_per_byte_ = values.number("page_lock_ns_per_byte");
}

Time Card::kernel(const SimcudaKernel& kernel) const {
  const double arithmetic = kernel.flops / rates_[kernel.rate];
  const double traffic = kernel.bytes / bandwidth_;
  return rounded(launch_ns_ * kernel.launches +
                 seconds_to_ns(std::max(arithmetic, traffic)));
}

Time Card::traffic(double bytes) const {
  return rounded(launch_ns_ + seconds_to_ns(bytes / bandwidth_));
}

Time Card::host_traffic(double bytes) const {
  return rounded(seconds_to_ns(bytes / host_bandwidth_));
}

Time Card::copy(Part direction, uint64_t bytes, bool page_locked) const {
  const Link& link = page_locked ? page_locked_ : pageable_;
  const double rate = direction == Part::HostToDevice ? link.in : link.out;
  return rounded(copy_ns_ + seconds_to_ns(static_cast<double>(bytes) / rate));
}

Time Card::collective(double bytes) const {
  return rounded(collective_ns_ + seconds_to_ns(bytes / collective_));
}

Time Card::disk(uint64_t read, uint64_t written) const {
  return rounded(seconds_to_ns(static_cast<double>(read) / disk_read_ +
                               static_cast<double>(written) / disk_write_));
}

Time Card::call(const std::string& function) const {
  const auto found = calls_.find(function);
  return rounded(found == calls_.end() ? call_ns_ : found->second);
}

Time Card::clearing(uint64_t bytes) const {
  return rounded(page_clear_ns_per_byte_ * static_cast<double>(bytes));
}

Time Card::page_locking(uint64_t bytes) const {
  return rounded(page_lock_ns_per_byte_ * static_cast<double>(bytes));
}

Time Card::operation() const {
  return rounded(operation_ns_);
}

const Card& card() {
  static const Card* c = new Card(config().card);
  return *c;
}

}  // namespace simcuda
