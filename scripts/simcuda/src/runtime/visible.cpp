#include "visible.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "config.h"

namespace simcuda {
namespace {

// CUDA's rules: what follows a number that no device has is not seen, and
// nothing is if one comes twice.
std::vector<int> numbered(const char* text) {
  std::vector<int> result;
  std::istringstream list(text);
  for (std::string item; std::getline(list, item, ',');) {
    char* end = nullptr;
    const long number = std::strtol(item.c_str(), &end, 10);
    if (end == item.c_str() || number < 0 || number >= config().devices) {
      break;
    }
    const int device = static_cast<int>(number);
    if (std::count(result.begin(), result.end(), device) != 0) {
      return {};
    }
    result.push_back(device);
  }
  return result;
}

const std::vector<int>& seen() {
  static const auto* devices = [] {
    if (const char* text = std::getenv("CUDA_VISIBLE_DEVICES")) {
      return new std::vector<int>(numbered(text));
    }
    auto* all = new std::vector<int>(static_cast<size_t>(config().devices));
    std::iota(all->begin(), all->end(), 0);
    return all;
  }();
  return *devices;
}

}  // namespace

int visible_devices() {
  return static_cast<int>(seen().size());
}

int physical_device(int device) {
  return seen().at(static_cast<size_t>(device));
}

}  // namespace simcuda
