#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/DispatchKey.h>

namespace at::cuda::lms {

// Note [Interception of operators]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// The dispatch key FPGA is reserved, has no users, and sits directly above the
// dense backends: below autograd, autocast, functorch and the Python modes. LMS
// registers boxed kernels on it and includes the key in the thread-local state
// of threads that it is enabled for, so it sees every leaf operator of theirs
// and costs nothing elsewhere.
//
// A fallback alone does not do: the key counts as a backend, so an operator
// with a CompositeExplicitAutograd kernel would run that instead of the CUDA
// one. Hence a kernel per operator, the fallback for the rest, and a listener
// for operators that are registered later.
//
// Sparse, nested and quantised tensors have backends above it. An operator with
// a kernel for one of these gets another of ours, on the key Fake, which has no
// users either: it passes on what is called with dense tensors only.
constexpr auto kKey = c10::DispatchKey::FPGA;
constexpr auto kKeyAboveAllBackends = c10::DispatchKey::Fake;

// Registers the kernels; later calls add operators that are new since.
void intercept_operators();

// Lets storages be adopted, once no operator is under way that began before: it
// may use storages without pins, and none may be hidden under it. Operators
// that begin meanwhile wait.
void enable_adoption();

// Exists while an operator is under way.
class UnderWay {
 public:
  UnderWay();
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;
  ~UnderWay();
};

// Turns interception on or off for the calling thread, and for threads that
// inherit its thread-local state, as autograd's do.
void set_thread_enabled(bool enabled);
bool is_thread_enabled();

// Runs one operator: pins its storages, redispatches to what is below LMS,
// adopts the results, and unpins.
void run_operator(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack);

// Runs an operator inside of another one, or instead of one: pins its storages
// and redispatches to `below`.
void run_inside(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet below,
    torch::jit::Stack* stack);

// The same for an operator on lists of tensors, such as _foreach_add_ and
// _fused_adamw_, in chunks that fit where the lists as a whole do not.
void run_list_operator(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack);

// True for operators that run_list_operator can cut into chunks.
bool is_list_operator(const c10::FunctionSchema& schema);

// While one exists on a thread, storages that operators make there are not
// adopted: their addresses can be taken freely.
class AdoptionPause {
 public:
  AdoptionPause();
  AdoptionPause(const AdoptionPause&) = delete;
  AdoptionPause& operator=(const AdoptionPause&) = delete;
  ~AdoptionPause();
};
void pause_adoption(); // unscoped, for Python's context manager
void resume_adoption();
bool is_adoption_paused();

} // namespace at::cuda::lms
