#include "cost.h"

#include <ATen/Context.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>

#include "alias.h"
#include "flops.h"
#include "outputs.h"
#include "random.h"
#include "values.h"

namespace simcuda {
namespace {

using Names = std::set<std::string>;

// Tensors of a list that one kernel takes: PyTorch's multi_tensor_apply takes
// 110 of one list to 30 of five, and optimizers give it three or four lists.
constexpr size_t kTensorsPerLaunch = 36;

// Arguments whose contents are replaced without being read.
bool only_writes(const c10::FunctionSchema& schema,
                 const c10::Argument& argument) {
  static const Names names = {"aten::copy_", "aten::fill_", "aten::zero_",
                              "aten::_foreach_copy_", "aten::_foreach_zero_"};
  const bool replaces = names.count(schema.name()) != 0 ||
                        (is_random(schema) && schema.name().back() == '_');
  return argument.is_out() || (replaces && is_written(argument));
}

// The fused optimizers write gradients only where they unscale them.
bool spares(const c10::FunctionSchema& schema, const c10::Argument& argument,
            c10::ArrayRef<c10::IValue> arguments) {
  if (argument.name() != "grads" || schema.name().rfind("aten::_fused_", 0)) {
    return false;
  }
  const auto scale = schema.argumentIndexWithName("grad_scale");
  return !scale || arguments[static_cast<size_t>(*scale)].isNone();
}

// Operators that read, of their first tensor, as much as they return.
bool gathers(const std::string& name) {
  static const Names names = {"aten::embedding", "aten::gather",
                              "aten::index",     "aten::index_select",
                              "aten::take",      "aten::_unsafe_index"};
  return names.count(name) != 0;
}

// Operators that read and write, of their first tensor, as much as they get.
bool scatters(const std::string& name) {
  static const Names names = {
      "aten::_index_put_impl_", "aten::index_add_",     "aten::index_copy_",
      "aten::index_put_",       "aten::put_",           "aten::scatter_",
      "aten::scatter_add_",     "aten::scatter_reduce_"};
  return names.count(name) != 0;
}

bool takes_bags(const std::string& name) {
  return name == "aten::_embedding_bag" ||
         name == "aten::_embedding_bag_forward_only";
}

// Bytes of the elements; of a broadcast tensor only those that exist.
double bytes_of(const at::Tensor& tensor) {
  if (!tensor.is_cuda() || tensor.layout() != at::kStrided) {
    return 0;
  }
  return static_cast<double>(std::min(tensor.nbytes(), extent(tensor)));
}

double bytes_of(const c10::IValue& value) {
  double sum = 0;
  for_each_tensor(value, [&](const at::Tensor& t) { sum += bytes_of(t); });
  return sum;
}

// The rows of a table that are looked up.
double rows_of(const at::Tensor& table, const at::Tensor& indices) {
  return static_cast<double>(indices.numel() * table.size(1)) *
         static_cast<double>(table.itemsize());
}

// What the operator moves of one argument.
double traffic_of(const c10::FunctionSchema& schema,
                  c10::ArrayRef<c10::IValue> arguments, size_t i) {
  const c10::Argument& argument = schema.arguments()[i];
  const double bytes = bytes_of(arguments[i]);
  const bool reads = !only_writes(schema, argument);
  const bool writes =
      is_written(argument) && !spares(schema, argument, arguments);
  return (reads ? bytes : 0) + (writes ? bytes : 0);
}

double find_traffic(const c10::FunctionSchema& schema,
                    c10::ArrayRef<c10::IValue> arguments,
                    const torch::jit::Stack& results) {
  double made = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    if (schema.returns()[i].alias_info() == nullptr) {
      made += bytes_of(results[i]);
    }
  }
  if (arguments.empty()) {
    return made;
  }
  const std::string& name = schema.name();
  double first = traffic_of(schema, arguments, 0);
  double others = 0;
  for (size_t i = 1; i < arguments.size(); ++i) {
    others += traffic_of(schema, arguments, i);
  }
  if (gathers(name)) {
    first = std::min(first, made);
  } else if (scatters(name)) {
    first = std::min(first, 2 * others);
  } else if (takes_bags(name)) {
    first = std::min(first,
                     rows_of(arguments[0].toTensor(), arguments[1].toTensor()));
  }
  return first + others + made;
}

int find_launches(c10::ArrayRef<c10::IValue> arguments) {
  size_t longest = 1;
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensorList()) {
      longest = std::max(longest, argument.toListRef().size());
    }
  }
  return static_cast<int>((longest + kTensorsPerLaunch - 1) /
                          kTensorsPerLaunch);
}

bool takes_tf32(const std::string& name) {
  const at::Context& context = at::globalContext();
  return name.rfind("aten::convolution", 0) == 0 ? context.allowTF32CuDNN()
                                                 : context.allowTF32CuBLAS();
}

// The arithmetic of an operator that has a formula, by its first tensor.
SimcudaRate find_rate(const std::string& name,
                      c10::ArrayRef<c10::IValue> arguments) {
  std::optional<at::ScalarType> type;
  for (const c10::IValue& argument : arguments) {
    for_each_tensor(argument, [&](const at::Tensor& t) {
      if (!type && t.is_cuda()) {
        type = t.scalar_type();
      }
    });
  }
  switch (type.value_or(at::kFloat)) {
    case at::kDouble:
    case at::kComplexDouble:
      return SIMCUDA_FP64;
    case at::kHalf:
      return SIMCUDA_FP16;
    case at::kBFloat16:
      return SIMCUDA_BF16;
    case at::kChar:
    case at::kByte:
    case at::kFloat8_e4m3fn:
    case at::kFloat8_e5m2:
      return SIMCUDA_INT8;
    default:
      return takes_tf32(name) ? SIMCUDA_TF32 : SIMCUDA_FP32;
  }
}

// Of the timeline. What nobody may record is no operator of the program's:
// Large Model Support runs it again.
const char* find_name(const c10::FunctionSchema& schema) {
  if (at::isRecordFunctionEnabled()) {
    return schema.name().c_str();
  }
  static std::mutex mutex;
  static auto* again = new Names();  // never freed: names live for ever
  const std::lock_guard<std::mutex> lock(mutex);
  return again->insert("again " + schema.name()).first->c_str();
}

}  // namespace

SimcudaKernel find_cost(const c10::OperatorHandle& op,
                        c10::ArrayRef<c10::IValue> arguments,
                        const torch::jit::Stack& results) {
  const c10::FunctionSchema& schema = op.schema();
  SimcudaKernel kernel{find_name(schema), 0, SIMCUDA_FP32, 0, 0};
  kernel.bytes = find_traffic(schema, arguments, results);
  if (kernel.bytes == 0) {
    return kernel;  // nothing to do, nothing is launched
  }
  kernel.launches = find_launches(arguments);
  if (has_flops(schema.name())) {
    kernel.flops = find_flops(schema, arguments, results);
    kernel.rate = find_rate(schema.name(), arguments);
  }
  return kernel;
}

}  // namespace simcuda
