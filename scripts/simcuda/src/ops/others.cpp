// Dropout, RMS norm, and matrix products with another output type.
#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include "handwritten.h"
#include "random.h"

namespace simcuda {
namespace {

using torch::jit::drop;
using torch::jit::peek;
using torch::jit::Stack;

at::Tensor keep_mask(const at::Tensor& like, double p) {
  return at::empty_like(like, at::kBool).bernoulli_(1 - p, call_generator());
}

void native_dropout(Stack* stack) {
  const at::Tensor input = peek(*stack, 0, 3).toTensor();
  const double p = peek(*stack, 1, 3).toDouble();
  const c10::IValue& train = peek(*stack, 2, 3);
  const bool drops = train.isNone() || train.toBool();
  drop(*stack, 3);
  if (!drops) {
    stack->emplace_back(input.clone());
    stack->emplace_back(at::ones_like(input, at::kBool));
    return;
  }
  const at::Tensor mask = keep_mask(input, p);
  const double scale = p == 1 ? 0 : 1 / (1 - p);
  stack->emplace_back(input.mul(mask).mul_(scale));
  stack->emplace_back(mask);
}

void fused_dropout(Stack* stack) {
  const at::Tensor input = peek(*stack, 0, 3).toTensor();
  const double keep = peek(*stack, 1, 3).toDouble();
  drop(*stack, 3);
  const at::Tensor mask = keep_mask(input, 1 - keep);
  stack->emplace_back(input.mul(mask).div_(keep));
  stack->emplace_back(mask.to(at::kByte));
}

// grad_input of x / rms(x) * weight over the last dimensions.
void fused_rms_norm_backward(Stack* stack) {
  const at::Tensor grad_out = peek(*stack, 0, 6).toTensor();
  const at::Tensor input = peek(*stack, 1, 6).toTensor();
  const auto normalized = peek(*stack, 2, 6).toIntVector();
  const at::Tensor rstd = peek(*stack, 3, 6).toTensor();
  const auto weight = peek(*stack, 4, 6).toOptional<at::Tensor>();
  const auto wanted = peek(*stack, 5, 6).toBoolList();
  const bool wants_input = wanted.get(0);
  const bool wants_weight = wanted.get(1);
  drop(*stack, 6);

  const auto compute = at::toOpMathType(input.scalar_type());
  const at::Tensor x = input.to(compute) * rstd.to(compute);
  const at::Tensor grad = grad_out.to(compute);
  at::Tensor grad_input;
  at::Tensor grad_weight;
  const bool weighted = weight && weight->defined();
  if (wants_input) {
    std::vector<int64_t> inner;
    for (size_t i = 0; i < normalized.size(); ++i) {
      inner.push_back(-1 - static_cast<int64_t>(i));
    }
    const at::Tensor g = weighted ? grad * weight->to(compute) : grad;
    const at::Tensor mean = (g * x).mean(inner, /*keepdim=*/true);
    grad_input = ((g - x * mean) * rstd.to(compute)).to(input.scalar_type());
  }
  if (wants_weight && weighted) {
    grad_weight = (grad * x).sum_to_size(normalized).to(weight->scalar_type());
  }
  stack->emplace_back(grad_input);
  stack->emplace_back(grad_weight);
}

// mm.dtype, bmm.dtype: operands of half precision, a result of single.
template <bool kBatched>
void product_as(Stack* stack) {
  const at::Tensor a = peek(*stack, 0, 3).toTensor();
  const at::Tensor b = peek(*stack, 1, 3).toTensor();
  const auto type = peek(*stack, 2, 3).toScalarType();
  drop(*stack, 3);
  stack->emplace_back(kBatched ? at::bmm(a.to(type), b.to(type))
                               : at::mm(a.to(type), b.to(type)));
}

}  // namespace

void add_others() {
  add_handwritten("aten::native_dropout", "", native_dropout);
  add_handwritten("aten::_fused_dropout", "", fused_dropout);
  add_handwritten("aten::_fused_rms_norm_backward", "",
                  fused_rms_norm_backward);
  add_handwritten("aten::mm", "dtype", product_as<false>);
  add_handwritten("aten::bmm", "dtype", product_as<true>);
}

}  // namespace simcuda
