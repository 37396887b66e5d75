#include "handwritten.h"

#include <unordered_map>

namespace simcuda {
namespace {

std::unordered_map<c10::OperatorName, BoxedFunction>& functions() {
  static auto* all = new std::unordered_map<c10::OperatorName, BoxedFunction>;
  return *all;
}

}  // namespace

BoxedFunction find_handwritten(const c10::OperatorName& name) {
  const auto found = functions().find(name);
  return found == functions().end() ? nullptr : found->second;
}

void add_handwritten(const char* name, const char* overload, BoxedFunction f) {
  functions().emplace(c10::OperatorName(name, overload), f);
}

}  // namespace simcuda
