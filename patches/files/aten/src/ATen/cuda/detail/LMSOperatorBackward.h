#pragma once

#include <cstdint>

namespace at::cuda::lms {

// Note [Gradients that cross streams]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Where a gradient's consumer runs on another stream, the autograd engine hands
// the gradient's DataPtr to recordStream outside any operator. That is const
// access to a storage that nobody pins, and must not throw. So a storage that
// may be such a gradient does without the check on const access until the
// backward pass ends; its address is null nevertheless. These are the
// gradients that a pass starts with, what operators make in a node of the
// graph, and what a Python Function returns from its backward. What operators
// make inside a Python Function is checked, since extensions are called there.
//
// It takes several streams or devices, so a program that uses one stream keeps
// every check.

// Process wide, one way.
bool uses_several_streams();
void set_uses_several_streams();

// What the calling thread runs of a backward pass.
enum class AutogradScope : int8_t {
  kNone, // nothing, or nodes, in a thread of the autograd engine
  kBackward, // a whole backward pass, begun from Python
  kFunction, // the backward of a Python Function
};
// Returns the scope that was.
AutogradScope set_autograd_scope(AutogradScope scope);

// True if an operator's result may be a gradient that crosses streams.
bool makes_gradients();

// Around a backward pass that begins from Python. Storages are checked again
// when no pass runs any more.
void begin_backward();
void end_backward();

} // namespace at::cuda::lms
