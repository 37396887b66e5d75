#include "timed.h"

#include <c10/cuda/CUDAException.h>

#include <algorithm>
#include <set>
#include <string>

#include "../simcuda.h"
#include "cost.h"
#include "outputs.h"
#include "shapes.h"
#include "values.h"
#include "zeros.h"

namespace simcuda {
namespace {

bool is_mask(const c10::IValue& indices) {
  bool found = false;
  if (indices.isOptionalTensorList()) {
    for_each_tensor(indices, [&](const at::Tensor& t) {
      found |= t.scalar_type() == at::kBool || t.scalar_type() == at::kByte;
    });
  }
  return found;
}

// True when the host must wait for the answer, or for the result's shape.
bool depends_on_data(const c10::FunctionSchema& schema,
                     c10::ArrayRef<c10::IValue> arguments) {
  static const std::set<std::string> names = {
      "aten::_unique",
      "aten::_unique2",
      "aten::bincount",
      "aten::masked_select",
      "aten::nonzero",
      "aten::unique_dim",
      "aten::unique_consecutive",
      "aten::unique_dim_consecutive",
      "aten::repeat_interleave",
  };
  return names.count(schema.name()) != 0 || answers_host(schema) ||
         std::any_of(arguments.begin(), arguments.end(), is_mask);
}

// Results as the shapes say, and arguments where the schema says so.
void make_results(const c10::FunctionSchema& schema,
                  c10::ArrayRef<c10::IValue> arguments,
                  c10::ArrayRef<c10::IValue> shapes, c10::Device device,
                  torch::jit::Stack& results) {
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    const c10::IValue* same = find_aliased(schema, i, arguments);
    results.push_back(same != nullptr
                          ? *same
                          : map_tensors(shapes[i], [&](const at::Tensor& t) {
                              return empty_like_on(t, device);
                            }));
  }
}

}  // namespace

void simulate_timed(const c10::OperatorHandle& op,
                    c10::ArrayRef<c10::IValue> arguments,
                    const c10::cuda::CUDAStream& stream,
                    torch::jit::Stack& results) {
  simcudaSpendOperation();
  const auto& schema = op.schema();
  const bool waits = depends_on_data(schema, arguments);
  Shapes shapes;
  if (!is_plain_in_place(schema)) {
    if (waits || !find_shapes(op, arguments, shapes)) {
      shapes = compute_on_zeros(op, arguments);
    }
    resize_written(schema, arguments, shapes.arguments);
  }
  make_results(schema, arguments, shapes.results, stream.device(), results);
  const SimcudaKernel kernel = find_cost(op, arguments, results);
  C10_CUDA_CHECK(simcudaTime(stream.stream(), stream.device_index(), &kernel));
  if (waits) {
    C10_CUDA_CHECK(simcudaDrain(stream.stream(), stream.device_index()));
  }
}

}  // namespace simcuda
