// The fused cells of LSTM and GRU. Their workspace holds what the backward pass
// needs; only these functions read it.
#include <ATen/ATen.h>

#include "handwritten.h"

namespace simcuda {
namespace {

using torch::jit::drop;
using torch::jit::peek;
using torch::jit::Stack;

at::Tensor optional(const c10::IValue& value) {
  return value.isNone() ? at::Tensor() : value.toTensor();
}

at::Tensor plus(const at::Tensor& gates, const at::Tensor& bias) {
  return bias.defined() ? gates + bias : gates;
}

void lstm(Stack* stack) {
  const at::Tensor cx = peek(*stack, 2, 5).toTensor();
  const at::Tensor gates =
      plus(peek(*stack, 0, 5).toTensor(), optional(peek(*stack, 3, 5))) +
      plus(peek(*stack, 1, 5).toTensor(), optional(peek(*stack, 4, 5)));
  drop(*stack, 5);
  const auto g = gates.chunk(4, 1);
  const at::Tensor in = g[0].sigmoid();
  const at::Tensor forget = g[1].sigmoid();
  const at::Tensor cell = g[2].tanh();
  const at::Tensor out = g[3].sigmoid();
  const at::Tensor cy = forget * cx + in * cell;
  stack->emplace_back(out * cy.tanh());
  stack->emplace_back(cy);
  stack->emplace_back(at::cat({in, forget, cell, out}, 1));
}

void lstm_backward(Stack* stack) {
  const at::Tensor grad_hy = optional(peek(*stack, 0, 6));
  const at::Tensor grad_cy = optional(peek(*stack, 1, 6));
  const at::Tensor cx = peek(*stack, 2, 6).toTensor();
  const at::Tensor cy = peek(*stack, 3, 6).toTensor();
  const auto g = peek(*stack, 4, 6).toTensor().chunk(4, 1);
  const bool has_bias = peek(*stack, 5, 6).toBool();
  drop(*stack, 6);
  if (!grad_hy.defined() && !grad_cy.defined()) {
    stack->insert(stack->end(), 3, at::Tensor());
    return;
  }
  const at::Tensor &in = g[0], &forget = g[1], &cell = g[2], &out = g[3];
  const at::Tensor t = cy.tanh();
  const at::Tensor dh = grad_hy.defined() ? grad_hy : at::zeros_like(cy);
  at::Tensor dc = dh * out * (1 - t * t);
  if (grad_cy.defined()) {
    dc = dc + grad_cy;
  }
  const at::Tensor grad_gates =
      at::cat({dc * cell * in * (1 - in), dc * cx * forget * (1 - forget),
               dc * in * (1 - cell * cell), dh * t * out * (1 - out)},
              1);
  stack->emplace_back(grad_gates);
  stack->emplace_back(dc * forget);
  stack->emplace_back(has_bias ? grad_gates.sum(0) : at::Tensor());
}

void gru(Stack* stack) {
  const at::Tensor input =
      plus(peek(*stack, 0, 5).toTensor(), optional(peek(*stack, 3, 5)));
  const at::Tensor hidden =
      plus(peek(*stack, 1, 5).toTensor(), optional(peek(*stack, 4, 5)));
  const at::Tensor hx = peek(*stack, 2, 5).toTensor();
  drop(*stack, 5);
  const auto i = input.chunk(3, 1);
  const auto h = hidden.chunk(3, 1);
  const at::Tensor reset = (i[0] + h[0]).sigmoid();
  const at::Tensor update = (i[1] + h[1]).sigmoid();
  const at::Tensor fresh = (i[2] + reset * h[2]).tanh();
  stack->emplace_back(fresh + update * (hx - fresh));
  stack->emplace_back(at::cat({reset, update, fresh, hx, h[2]}, 1));
}

void gru_backward(Stack* stack) {
  const at::Tensor grad = peek(*stack, 0, 3).toTensor();
  const auto w = peek(*stack, 1, 3).toTensor().chunk(5, 1);
  const bool has_bias = peek(*stack, 2, 3).toBool();
  drop(*stack, 3);
  const at::Tensor &reset = w[0], &update = w[1], &fresh = w[2], &hx = w[3];
  const at::Tensor d_update = grad * (hx - fresh) * update * (1 - update);
  const at::Tensor d_fresh = grad * (1 - update) * (1 - fresh * fresh);
  const at::Tensor d_reset = d_fresh * w[4] * reset * (1 - reset);
  const at::Tensor d_input = at::cat({d_reset, d_update, d_fresh}, 1);
  const at::Tensor d_hidden = at::cat({d_reset, d_update, d_fresh * reset}, 1);
  stack->emplace_back(d_input);
  stack->emplace_back(d_hidden);
  stack->emplace_back(grad * update);
  stack->emplace_back(has_bias ? d_input.sum(0) : at::Tensor());
  stack->emplace_back(has_bias ? d_hidden.sum(0) : at::Tensor());
}

}  // namespace

void add_recurrent() {
  add_handwritten("aten::_thnn_fused_lstm_cell", "", lstm);
  add_handwritten("aten::_thnn_fused_lstm_cell_backward_impl", "",
                  lstm_backward);
  add_handwritten("aten::_thnn_fused_gru_cell", "", gru);
  add_handwritten("aten::_thnn_fused_gru_cell_backward", "", gru_backward);
}

}  // namespace simcuda
