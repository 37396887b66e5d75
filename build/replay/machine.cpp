#include "machine.h"

#include <cmath>
#include <map>
#include <stdexcept>

namespace lms_replay {
namespace {

constexpr double kNanosecond = 1e3; // picoseconds

// The numbers of words NAME=NUMBER, each to be taken once.
class Numbers {
 public:
  explicit Numbers(const std::vector<std::string>& words) {
    for (const std::string& word : words) {
      const size_t equals = word.find('=');
      if (equals == std::string::npos) {
        throw std::invalid_argument(word + " is not NAME=NUMBER");
      }
      numbers_[word.substr(0, equals)] = std::stod(word.substr(equals + 1));
    }
  }
  double take(const std::string& name) {
    const auto found = numbers_.find(name);
    if (found == numbers_.end()) {
      throw std::invalid_argument(name + " is missing");
    }
    const double number = found->second;
    numbers_.erase(found);
    return number;
  }
  void expect_none() const {
    if (!numbers_.empty()) {
      throw std::invalid_argument("what is " + numbers_.begin()->first + "?");
    }
  }

 private:
  std::map<std::string, double> numbers_;
};

Time nanoseconds(double number) {
  return std::llround(number * kNanosecond);
}

} // namespace

Machine parse_machine(const std::vector<std::string>& words) {
  Numbers numbers(words);
  Machine machine;
  machine.capacity = static_cast<size_t>(numbers.take("capacity"));
  machine.in_bandwidth = numbers.take("h2d");
  machine.out_bandwidth = numbers.take("d2h");
  machine.both_bandwidth = numbers.take("both");
  machine.memory_bandwidth = numbers.take("memory");
  machine.latency = nanoseconds(numbers.take("latency_ns"));
  machine.launch = nanoseconds(numbers.take("launch_ns"));
  machine.host_per_operator = nanoseconds(numbers.take("operator_ns"));
  machine.host = static_cast<size_t>(numbers.take("host"));
  machine.disk = static_cast<size_t>(numbers.take("disk"));
  machine.read_bandwidth = numbers.take("disk_read");
  machine.write_bandwidth = numbers.take("disk_write");
  numbers.expect_none();
  return machine;
}

} // namespace lms_replay
