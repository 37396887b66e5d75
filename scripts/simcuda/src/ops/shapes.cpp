#include "shapes.h"

#include <ATen/EmptyTensor.h>

#include <mutex>
#include <set>
#include <string>

#include "compute.h"
#include "outputs.h"
#include "shape_cache.h"
#include "values.h"

namespace simcuda {
namespace {

// Operators found to have no meta kernel, so as not to try each time.
class WithoutMeta {
 public:
  bool holds(const c10::OperatorName& name) {
    std::lock_guard<std::mutex> lock(mutex_);
    return names_.count(c10::toString(name)) != 0;
  }
  void add(const c10::OperatorName& name) {
    std::lock_guard<std::mutex> lock(mutex_);
    names_.insert(c10::toString(name));
  }

 private:
  std::mutex mutex_;
  std::set<std::string> names_;
};

WithoutMeta& without_meta() {
  static auto* all = new WithoutMeta;
  return *all;
}

bool starts_with(const std::string& text, const char* prefix) {
  return text.rfind(prefix, 0) == 0;
}

at::Tensor to_meta(const at::Tensor& tensor) {
  if (tensor.is_cpu() && tensor.dim() == 0) {
    return tensor;  // a number next to CUDA tensors stays one
  }
  at::Tensor meta(at::detail::empty_strided_meta(
      tensor.sizes(), tensor.strides(), tensor.scalar_type()));
  meta._set_conj(tensor.is_conj());
  meta._set_neg(tensor.is_neg());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return meta;
}

// Operators whose meta kernels lay results out as arguments are, though the
// device, which has no cuDNN, does not: torch.compile counts on that.
bool ignores_layout(const c10::FunctionSchema& schema) {
  return schema.name() == "aten::convolution_backward";
}

bool ask_meta_kernel(const c10::OperatorHandle& op,
                     c10::ArrayRef<c10::IValue> arguments, Shapes& shapes) {
  if (without_meta().holds(op.operator_name())) {
    return false;
  }
  BelowEverything guard;
  const bool dense = ignores_layout(op.schema());
  for (const c10::IValue& argument : arguments) {
    if (argument.isDevice()) {
      shapes.arguments.emplace_back(c10::Device(c10::kMeta));
    } else if (argument.isGenerator()) {
      shapes.arguments.emplace_back();
    } else {
      shapes.arguments.push_back(
          map_tensors(argument, [dense](const at::Tensor& tensor) {
            const at::Tensor meta = to_meta(tensor);
            return dense ? meta.contiguous() : meta;
          }));
    }
  }
  shapes.results = shapes.arguments;
  try {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta),
                       &shapes.results);
  } catch (const c10::NotImplementedError&) {
    without_meta().add(op.operator_name());
    return false;
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

}  // namespace

bool is_plain_in_place(const c10::FunctionSchema& schema) {
  const std::string& name = schema.name();
  return name.back() == '_' &&
         (starts_with(name, "aten::_foreach") ||
          starts_with(name, "aten::_fused") || starts_with(name, "aten::_amp"));
}

bool find_shapes(const c10::OperatorHandle& op,
                 c10::ArrayRef<c10::IValue> arguments, Shapes& shapes) {
  const auto call = describe_call(op, arguments);
  if (const auto known = call ? recall_shapes(*call) : nullptr) {
    shapes = *known;
    return true;
  }
  if (!ask_meta_kernel(op, arguments, shapes)) {
    return false;
  }
  if (call) {
    remember_shapes(*call, shapes);
  }
  return true;
}

void resize_written(const c10::FunctionSchema& schema,
                    c10::ArrayRef<c10::IValue> arguments,
                    c10::ArrayRef<c10::IValue> shapes) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!is_written(schema.arguments()[i]) || !arguments[i].isTensor()) {
      continue;
    }
    const at::Tensor& tensor = arguments[i].toTensor();
    const at::Tensor& shape = shapes[i].toTensor();
    if (tensor.defined() && tensor.sizes() != shape.sizes()) {
      give_shape(tensor, shape);
    }
  }
}

}  // namespace simcuda
