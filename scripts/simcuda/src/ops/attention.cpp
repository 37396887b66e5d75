// Flash and memory-efficient attention, forward and backward, by the textbook:
// P = softmax(scale Q K^T + mask), O = dropout(P) V.
#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <torch/version.h>

#include <cmath>

#include "handwritten.h"
#include "random.h"

namespace simcuda {
namespace {

using torch::jit::drop;
using torch::jit::peek;
using torch::jit::Stack;

struct Problem {
  at::Tensor query, key, value;  // batch, heads, length, width
  at::Tensor bias;               // may be undefined
  double dropout = 0;
  bool causal = false;
  double scale = 0;
  uint64_t seed = 0;  // of the dropout mask

  bool grouped() const {
    return key.size(1) != query.size(1);
  }
};

double scale_of(const c10::IValue& given, const at::Tensor& query) {
  return given.isNone() ? 1 / std::sqrt(static_cast<double>(query.size(-1)))
                        : given.toDouble();
}

at::ScalarType precise(const at::Tensor& tensor) {
  return at::toOpMathType(tensor.scalar_type());
}

// Keys and values of grouped-query attention, one per query head.
at::Tensor per_head(const at::Tensor& tensor, const Problem& p) {
  const at::Tensor wide = tensor.to(precise(tensor));
  return p.grouped()
             ? wide.repeat_interleave(p.query.size(1) / tensor.size(1), 1)
             : wide;
}

at::Tensor scores(const Problem& p) {
  const at::Tensor q = p.query.to(precise(p.query));
  at::Tensor s = at::matmul(q, per_head(p.key, p).transpose(-2, -1));
  s.mul_(p.scale);
  if (p.bias.defined()) {
    s = s + p.bias;
  }
  if (p.causal) {
    const at::Tensor later =
        at::ones({s.size(-2), s.size(-1)}, at::kBool).triu(1);
    s.masked_fill_(later, -INFINITY);
  }
  return s;
}

// What dropout multiplies the probabilities by; undefined without dropout.
at::Tensor dropout_factor(const Problem& p, const at::Tensor& like) {
  if (p.dropout == 0) {
    return {};
  }
  const auto generator = generator_at(p.seed, 0);
  return at::empty_like(like)
      .bernoulli_(1 - p.dropout, generator)
      .div_(1 - p.dropout);
}

struct Forward {
  at::Tensor out;
  at::Tensor logsumexp;
};

Forward forward(const Problem& p) {
  const at::Tensor s = scores(p);
  const at::Tensor lse = s.logsumexp(-1);
  at::Tensor weights = s.softmax(-1);
  // A row that sees nothing gives zero.
  weights.masked_fill_(lse.unsqueeze(-1) == -INFINITY, 0);
  const at::Tensor factor = dropout_factor(p, weights);
  if (factor.defined()) {
    weights.mul_(factor);
  }
  const at::Tensor out = at::matmul(weights, per_head(p.value, p));
  // Laid out as batch, length, heads, width, as the CUDA kernels do.
  return {out.to(p.query.scalar_type())
              .transpose(1, 2)
              .contiguous()
              .transpose(1, 2),
          lse.to(at::kFloat)};
}

struct Backward {
  at::Tensor query, key, value, bias;
};

at::Tensor sum_groups(const at::Tensor& gradient, const at::Tensor& like) {
  if (gradient.size(1) == like.size(1)) {
    return gradient.to(like.scalar_type());
  }
  const int64_t groups = gradient.size(1) / like.size(1);
  return gradient.unflatten(1, {like.size(1), groups})
      .sum(2)
      .to(like.scalar_type());
}

Backward backward(const Problem& p, const at::Tensor& grad_out) {
  const at::Tensor s = scores(p);
  at::Tensor weights = s.softmax(-1);
  weights.masked_fill_(s.amax(-1, /*keepdim=*/true) == -INFINITY, 0);
  const at::Tensor factor = dropout_factor(p, weights);
  const at::Tensor dropped = factor.defined() ? weights * factor : weights;
  const at::Tensor grad = grad_out.to(precise(grad_out));
  const at::Tensor value = per_head(p.value, p);
  at::Tensor d_weights = at::matmul(grad, value.transpose(-2, -1));
  if (factor.defined()) {
    d_weights = d_weights * factor;
  }
  const at::Tensor mean = (d_weights * weights).sum(-1, /*keepdim=*/true);
  const at::Tensor d_scores = weights * (d_weights - mean);
  const at::Tensor scaled = d_scores * p.scale;
  const at::Tensor query = p.query.to(precise(p.query));
  Backward b;
  b.query = at::matmul(scaled, per_head(p.key, p)).to(p.query.scalar_type());
  b.key = sum_groups(at::matmul(scaled.transpose(-2, -1), query), p.key);
  b.value = sum_groups(at::matmul(dropped.transpose(-2, -1), grad), p.value);
  if (p.bias.defined()) {
    b.bias = d_scores.sum_to_size(p.bias.sizes()).to(p.bias.scalar_type());
  }
  return b;
}

// The seed of this call's dropout mask, drawn from the call's generator.
uint64_t draw_seed() {
  const at::Tensor drawn = at::empty({}, at::kLong);
  drawn.random_(call_generator());
  return static_cast<uint64_t>(drawn.item<int64_t>());
}

at::Tensor number(uint64_t value) {
  return at::scalar_tensor(static_cast<int64_t>(value), at::kLong);
}

uint64_t first_number(const at::Tensor& tensor) {
  return static_cast<uint64_t>(
      tensor.flatten()[0].to(at::kLong).item<int64_t>());
}

// The two results by which flash attention hands its generator's state on.
void push_flash_state(Stack& stack, uint64_t seed) {
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 7
  const at::Tensor state = at::zeros({2}, at::kUInt64);
  state.view(at::kLong)[0].fill_(static_cast<int64_t>(seed));
  stack.emplace_back(state);
  stack.emplace_back(at::empty({}, at::kUInt64));
#else
  stack.emplace_back(number(seed));
  stack.emplace_back(at::empty({}, at::kLong));
#endif
}

// (query, key, value, dropout_p, is_causal, return_debug_mask, *, scale)
void flash(Stack* stack) {
  Problem p;
  p.query = peek(*stack, 0, 7).toTensor();
  p.key = peek(*stack, 1, 7).toTensor();
  p.value = peek(*stack, 2, 7).toTensor();
  p.dropout = peek(*stack, 3, 7).toDouble();
  p.causal = peek(*stack, 4, 7).toBool();
  p.scale = scale_of(peek(*stack, 6, 7), p.query);
  p.seed = draw_seed();
  drop(*stack, 7);
  const Forward f = forward(p);
  stack->emplace_back(f.out);
  stack->emplace_back(f.logsumexp);
  stack->emplace_back(at::Tensor());  // cum_seq_q
  stack->emplace_back(at::Tensor());  // cum_seq_k
  stack->emplace_back(p.query.size(2));
  stack->emplace_back(p.key.size(2));
  push_flash_state(*stack, p.seed);
  stack->emplace_back(at::empty({0}, p.query.options()));
}

// (grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q,
//  max_k, dropout_p, is_causal, philox_seed, philox_offset, *, scale)
void flash_backward(Stack* stack) {
  const at::Tensor grad_out = peek(*stack, 0, 15).toTensor();
  Problem p;
  p.query = peek(*stack, 1, 15).toTensor();
  p.key = peek(*stack, 2, 15).toTensor();
  p.value = peek(*stack, 3, 15).toTensor();
  p.dropout = peek(*stack, 10, 15).toDouble();
  p.causal = peek(*stack, 11, 15).toBool();
  p.seed = first_number(peek(*stack, 12, 15).toTensor().view(at::kLong));
  p.scale = scale_of(peek(*stack, 14, 15), p.query);
  drop(*stack, 15);
  const Backward b = backward(p, grad_out);
  stack->emplace_back(b.query);
  stack->emplace_back(b.key);
  stack->emplace_back(b.value);
}

// (query, key, value, attn_bias, compute_log_sumexp, dropout_p, is_causal, *,
//  scale)
void efficient(Stack* stack) {
  Problem p;
  p.query = peek(*stack, 0, 8).toTensor();
  p.key = peek(*stack, 1, 8).toTensor();
  p.value = peek(*stack, 2, 8).toTensor();
  p.bias = peek(*stack, 3, 8).isNone() ? at::Tensor()
                                       : peek(*stack, 3, 8).toTensor();
  const bool wants_lse = peek(*stack, 4, 8).toBool();
  p.dropout = peek(*stack, 5, 8).toDouble();
  p.causal = peek(*stack, 6, 8).toBool();
  p.scale = scale_of(peek(*stack, 7, 8), p.query);
  p.seed = draw_seed();
  drop(*stack, 8);
  const Forward f = forward(p);
  // The CUDA kernel pads the length to a multiple of 32.
  const int64_t length = p.query.size(2);
  const int64_t padded = wants_lse ? (length + 31) / 32 * 32 : 0;
  at::Tensor lse = at::full({p.query.size(0), p.query.size(1), padded},
                            INFINITY, at::kFloat);
  if (wants_lse) {
    lse.slice(2, 0, length).copy_(f.logsumexp);
  }
  stack->emplace_back(f.out);
  stack->emplace_back(lse);
  stack->emplace_back(number(p.seed));
  stack->emplace_back(number(0));
}

// (grad_out, query, key, value, attn_bias, out, logsumexp, philox_seed,
//  philox_offset, dropout_p, grad_input_mask, is_causal, *, scale)
void efficient_backward(Stack* stack) {
  const at::Tensor grad_out = peek(*stack, 0, 13).toTensor();
  Problem p;
  p.query = peek(*stack, 1, 13).toTensor();
  p.key = peek(*stack, 2, 13).toTensor();
  p.value = peek(*stack, 3, 13).toTensor();
  p.bias = peek(*stack, 4, 13).isNone() ? at::Tensor()
                                        : peek(*stack, 4, 13).toTensor();
  p.seed = first_number(peek(*stack, 7, 13).toTensor());
  p.dropout = peek(*stack, 9, 13).toDouble();
  const auto wanted = peek(*stack, 10, 13).toBoolList();
  const bool wants_bias = wanted.get(3);
  p.causal = peek(*stack, 11, 13).toBool();
  p.scale = scale_of(peek(*stack, 12, 13), p.query);
  drop(*stack, 13);
  if (!grad_out.defined()) {
    stack->insert(stack->end(), 4, at::Tensor());
    return;
  }
  const Backward b = backward(p, grad_out);
  stack->emplace_back(b.query);
  stack->emplace_back(b.key);
  stack->emplace_back(b.value);
  stack->emplace_back(wants_bias ? b.bias : at::Tensor());
}

}  // namespace

void add_attention() {
  add_handwritten("aten::_scaled_dot_product_flash_attention", "", flash);
  add_handwritten("aten::_scaled_dot_product_flash_attention_backward", "",
                  flash_backward);
  add_handwritten("aten::_scaled_dot_product_efficient_attention", "",
                  efficient);
  add_handwritten("aten::_scaled_dot_product_efficient_attention_backward", "",
                  efficient_backward);
}

}  // namespace simcuda
