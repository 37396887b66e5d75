#include "flops.h"

#include <mutex>
#include <set>
#include <sstream>
#include <unordered_map>

#include "../simcuda.h"

namespace simcuda {
namespace {

// Of the call that the JSON text describes; negative when there is none.
using Formula = double (*)(const char* call);

struct Formulas {
  std::mutex mutex;
  Formula formula = nullptr;
  std::set<std::string> names;
  std::unordered_map<std::string, double> known;  // by call
};

Formulas& formulas() {
  static auto* all = new Formulas;
  return *all;
}

template <typename T>
void write_list(std::ostream& out, const T& values) {
  out << '[';
  const char* comma = "";
  for (const auto& value : values) {
    out << std::exchange(comma, ",") << value;
  }
  out << ']';
}

// Tensors as their sizes; what no formula looks at as null.
void write(std::ostream& out, const c10::IValue& value) {
  if (value.isTensor() && value.toTensor().defined()) {
    write_list(out, value.toTensor().sizes());
  } else if (value.isInt()) {
    out << value.toInt();
  } else if (value.isBool()) {
    out << (value.toBool() ? "true" : "false");
  } else if (value.isIntList()) {
    write_list(out, value.toIntVector());
  } else if (value.isList()) {
    out << '[';
    const char* comma = "";
    for (const c10::IValue& element : value.toListRef()) {
      out << std::exchange(comma, ",");
      write(out, element);
    }
    out << ']';
  } else {
    out << "null";
  }
}

std::string describe(const c10::FunctionSchema& schema,
                     c10::ArrayRef<c10::IValue> arguments,
                     const torch::jit::Stack& results) {
  std::ostringstream out;
  out << "{\"op\":\"" << schema.name().substr(schema.name().find("::") + 2)
      << "\",\"arguments\":[";
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    out << (i == 0 ? "" : ",") << "[\"" << argument.name() << "\","
        << (argument.kwarg_only() ? "true" : "false") << ',';
    write(out, arguments[i]);
    out << ']';
  }
  out << "],\"results\":[";
  for (size_t i = 0; i < results.size(); ++i) {
    out << (i == 0 ? "" : ",");
    write(out, results[i]);
  }
  out << "]}";
  return out.str();
}

}  // namespace

bool has_flops(const std::string& name) {
  return formulas().names.count(name) != 0;
}

double find_flops(const c10::FunctionSchema& schema,
                  c10::ArrayRef<c10::IValue> arguments,
                  const torch::jit::Stack& results) {
  Formulas& all = formulas();
  const std::string call = describe(schema, arguments, results);
  {
    std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = all.known.find(call);
    if (found != all.known.end()) {
      return found->second;
    }
  }
  // Takes Python's lock, so not under ours.
  const double flops = std::max(all.formula(call.c_str()), 0.0);
  std::lock_guard<std::mutex> lock(all.mutex);
  all.known[call] = flops;
  return flops;
}

}  // namespace simcuda

// Called once, before any operator runs. `names` has one name per line.
extern "C" SIMCUDA_API void simopsSetFormula(const char* names,
                                             simcuda::Formula formula) {
  simcuda::Formulas& all = simcuda::formulas();
  std::istringstream lines(names);
  for (std::string name; std::getline(lines, name);) {
    all.names.insert(name);
  }
  all.formula = formula;
}
