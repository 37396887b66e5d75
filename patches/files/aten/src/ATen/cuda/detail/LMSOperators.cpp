#include <ATen/cuda/detail/LMSOperators.h>

#include <ATen/core/dispatch/OperatorEntry.h>
#include <ATen/cuda/detail/LMSOperatorAttempt.h>
#include <ATen/cuda/detail/LMSCudaCaptures.h>
#include <ATen/cuda/detail/LMSOperatorCollectives.h>
#include <ATen/cuda/detail/LMSOperatorRecurrent.h>
#include <ATen/cuda/detail/LMSOperatorScope.h>
#include <ATen/cuda/detail/LMSAllocatorErrors.h>
#include <ATen/cuda/detail/LMSSettings.h>
#include <ATen/cuda/detail/LMSOperatorTouched.h>
#include <ATen/cuda/detail/LMSWaits.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

namespace at::cuda::lms {
namespace {

using c10::Dispatcher;
using c10::DispatchKey;
using c10::IValue;

// Operators and pauses that the thread is inside of. Only the outermost
// operator adopts: a kernel takes the address of what it allocates itself.
thread_local int adoption_pauses = 0;

// Operators under way on all threads, and on this one, where they nest.
std::atomic<int> operators_under_way{0};
thread_local int own_operators = 0;
std::atomic<bool> is_enabling{false};
constexpr std::chrono::seconds kLongestEnabling{10};

// --- registration ---

std::atomic<bool> has_new_operators{false};

class NewOperators final : public c10::OpRegistrationListener {
 public:
  // Called under the dispatcher's mutex: only takes note.
  void onOperatorRegistered(const c10::OperatorHandle& /*op*/) override {
    has_new_operators.store(true, std::memory_order_relaxed);
  }
  void onOperatorDeregistered(const c10::OperatorHandle& /*op*/) override {}
};

c10::DispatchKeySet keys_after(c10::DispatchKeySet keys, DispatchKey key) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key);
}

// `attempt`: null for an operator inside of another one.
void run_once(
    const c10::OperatorHandle& op,
    const OperatorTraits& traits,
    c10::DispatchKeySet below,
    torch::jit::Stack* stack,
    Attempt* attempt) {
  const auto& schema = op.schema();
  const auto arguments = torch::jit::last(*stack, schema.arguments().size());
  if (traits.blas != BlasUse::kNone) {
    prepare_workspace(traits.blas, arguments);
  }
  OperatorScope scope(
      traits.name,
      pin_arguments(traits, schema, arguments, !is_adoption_paused()));
  if (C10_UNLIKELY(Trace::get() != nullptr) &&
      below.has_backend(c10::BackendComponent::CUDABit)) {
    scope.record(op.operator_name());
  }
  {
    const DrawScope drawing(traits.is_random);
    if (attempt) {
      scope.keep(op, traits, below, arguments);
    }
    const AdoptionPause inside;
    op.redispatchBoxed(below, stack);
    scope.end();
  }
  if (!attempt) {
    note_step();
    keep_made_inside(torch::jit::last(*stack, schema.returns().size()));
    return;
  }
  attempt->end();
  scope.adopt(torch::jit::last(*stack, schema.returns().size()));
}

// Makes one piece of the free memory of every device that the operator's
// arguments are on, and of the current one.
void gather_for(
    const OperatorTraits& traits,
    const c10::FunctionSchema& schema,
    c10::ArrayRef<IValue> arguments,
    Gather how) {
  TouchedList touched = touched_by_arguments(traits, schema, arguments);
  (void)take_device(touched, c10::cuda::current_device());
  Device::get(c10::cuda::current_device())
      .consolidation()
      .gather(current_stream(c10::cuda::current_device()), how);
  while (!touched.empty()) {
    const auto index = touched.front().device;
    (void)take_device(touched, index);
    Device::get(index).consolidation().gather(current_stream(index), how);
  }
}

// Redispatches to `below`. See Note [Gathering an operator's storages].
void run_pinned(
    const c10::OperatorHandle& op,
    const OperatorTraits& traits,
    c10::DispatchKeySet below,
    torch::jit::Stack* stack) {
  const UnderWay counted;
  if (!Settings::get().active()) { // nothing is adopted until it has ended
    op.redispatchBoxed(below, stack);
    return;
  }
  if (C10_UNLIKELY(has_new_operators.load(std::memory_order_relaxed))) {
    intercept_operators();
  }
  look_after_collectives();
  if (C10_UNLIKELY(traits.is_read_by_host) && are_waits_watched()) {
    wait_before_reading(
        torch::jit::last(*stack, op.schema().arguments().size()));
  }
  if (is_adoption_paused()) { // inside an operator, which may run again
    run_once(op, traits, below, stack, nullptr);
    return;
  }
  Attempt attempt(op, traits, *stack);
  if (!attempt.can_repeat()) {
    run_once(op, traits, below, stack, &attempt);
    return;
  }
  for (const auto how : {Gather::kRoomy, Gather::kTight}) {
    try {
      const RetryScope retried;
      const UncaughtScope uncaught(
          attempt.may_always_run_again() ? Uncaught::kInPieces
                                         : Uncaught::kNone);
      run_once(op, traits, below, stack, &attempt);
      return;
    } catch (const Uncatchable&) { // NOLINT(bugprone-empty-catch)
      // It is in one piece the next time.
    } catch (const c10::OutOfMemoryError&) {
      if (!attempt.may_run_again()) {
        report_error();
        throw;
      }
    }
    gather_for(traits, op.schema(), attempt.restore(), how);
  }
  run_once(op, traits, below, stack, &attempt);
}

// Runs an operator like run_operator, and knows its traits.
class Kernel final : public c10::OperatorKernel {
 public:
  explicit Kernel(const c10::OperatorHandle& op) : traits_(op) {}

  void operator()(
      const c10::OperatorHandle& op,
      c10::DispatchKeySet keys,
      torch::jit::Stack* stack) const {
    run_pinned(op, traits_, keys_after(keys, kKey), stack);
  }

 private:
  const OperatorTraits traits_;
};

// A lazy clone shares the bytes of its original until one of them is written.
// That takes a DataPtr of another kind on both, which is not adopted.
void lazy_clone_kernel(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  for (const auto& [device, access] : touched_by_arguments(
           OperatorTraits(op),
           schema,
           torch::jit::last(*stack, schema.arguments().size()))) {
    Device::get(device).release(access.storage);
  }
  const AdoptionPause shared;
  run_operator(op, keys, stack);
}

constexpr c10::DispatchKeySet kOtherBackends{
    DispatchKey::Quantized,
    DispatchKey::Sparse,
    DispatchKey::SparseCsr,
    DispatchKey::NestedTensor};

void run_on_other_backend(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  const auto below = keys_after(keys, kKeyAboveAllBackends);
  // What a subclass or a mode of Python makes of it comes by again.
  if (below.has_any(kOtherBackends) && !below.has(DispatchKey::Python)) {
    run_pinned(op, OperatorTraits(op), below, stack);
  } else {
    op.redispatchBoxed(below, stack);
  }
}

// Operators that touch no bytes: views, which make a tensor on the same
// storage, and questions about the storage.
bool touches_no_bytes(const c10::FunctionSchema& schema) {
  if (schema.name() == "aten::is_pinned") {
    return true;
  }
  if (schema.returns().empty()) {
    return false;
  }
  for (const auto& result : schema.returns()) {
    if (!result.alias_info() || result.alias_info()->isWrite()) {
      return false;
    }
  }
  return true;
}

bool runs_on_other_backends(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(DispatchKey::QuantizedCUDA) ||
      op.hasKernelForDispatchKey(DispatchKey::SparseCUDA) ||
      op.hasKernelForDispatchKey(DispatchKey::SparseCsrCUDA) ||
      op.hasKernelForDispatchKey(DispatchKey::NestedTensorCUDA);
}

bool runs_on_cuda(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(DispatchKey::CUDA) ||
      op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
      op.hasKernelForDispatchKey(
          DispatchKey::CompositeExplicitAutogradNonFunctional);
}

class Interception {
 public:
  Interception() {
    handles_.push_back(Dispatcher::singleton().registerFallback(
        kKey,
        c10::KernelFunction::makeFromBoxedFunction<&run_operator>(),
        "Large Model Support"));
    handles_.push_back(Dispatcher::singleton().registerFallback(
        kKeyAboveAllBackends,
        c10::KernelFunction::makeFallthrough(),
        "Large Model Support"));
    handles_.push_back(Dispatcher::singleton().addRegistrationListener(
        std::make_unique<NewOperators>()));
  }

  void add_operators() {
    std::lock_guard<std::mutex> lock(mutex_);
    has_new_operators.store(false);
    for (const auto& name : Dispatcher::singleton().getAllOpNames()) {
      const auto op = Dispatcher::singleton().findOp(name);
      if (!op || !op->hasSchema()) {
        continue;
      }
      if (is_recurrent(name)) {
        if (dense_.insert(name).second) {
          add_recurrent(name);
        }
        continue;
      }
      // Those that have no kernel yet are looked at again when more is
      // registered.
      if (runs_on_cuda(*op) && dense_.insert(name).second) {
        add(name, kKey, kernel_for(*op));
      }
      if (runs_on_other_backends(*op) && !touches_no_bytes(op->schema()) &&
          !is_collective(op->schema()) && other_.insert(name).second) {
        add(name,
            kKeyAboveAllBackends,
            c10::KernelFunction::makeFromBoxedFunction<
                &run_on_other_backend>());
      }
    }
  }

 private:
  // Where the operator would be taken to pieces: in autograd, or without it.
  void add_recurrent(const c10::OperatorName& name) {
    for (const auto key : {DispatchKey::AutogradCUDA, kKey}) {
      add(name,
          key,
          c10::KernelFunction::makeFromBoxedFunction<&run_recurrent>());
    }
  }

  void add(
      const c10::OperatorName& name,
      DispatchKey key,
      c10::KernelFunction kernel) {
    handles_.push_back(Dispatcher::singleton().registerImpl(
        name,
        key,
        std::move(kernel),
        /*cpp_signature=*/std::nullopt,
        /*inferred_function_schema=*/nullptr,
        "Large Model Support"));
  }

  static c10::KernelFunction kernel_for(const c10::OperatorHandle& op) {
    const auto& schema = op.schema();
    if (touches_no_bytes(schema)) {
      return c10::KernelFunction::makeFallthrough();
    }
    if (schema.name() == "aten::_lazy_clone") {
      return c10::KernelFunction::makeFromBoxedFunction<&lazy_clone_kernel>();
    }
    if (is_collective(schema)) {
      return c10::KernelFunction::makeFromBoxedFunction<&run_collective>();
    }
    if (is_list_operator(schema)) {
      return c10::KernelFunction::makeFromBoxedFunction<&run_list_operator>();
    }
    return c10::KernelFunction::makeFromBoxedFunctor(
        std::make_unique<Kernel>(op));
  }

  std::mutex mutex_;
  std::unordered_set<c10::OperatorName> dense_; // operators that have kernels
  std::unordered_set<c10::OperatorName> other_;
  std::vector<c10::RegistrationHandleRAII> handles_;
};

} // namespace

void intercept_operators() {
  static auto* interception = new Interception(); // leaked: see Dispatcher
  interception->add_operators();
}

void enable_adoption() {
  is_enabling.store(true);
  const int own = own_operators > 0 ? 1 : 0;
  const auto give_up = std::chrono::steady_clock::now() + kLongestEnabling;
  while (operators_under_way.load() > own &&
         std::chrono::steady_clock::now() < give_up) {
    std::this_thread::yield();
  }
  Settings::get().set_enabled(true);
  is_enabling.store(false);
}

UnderWay::UnderWay() {
  while (own_operators == 0) {
    ++operators_under_way;
    // Looked at after counting: enable_adoption looks the other way round.
    if (C10_LIKELY(!is_enabling.load())) {
      break;
    }
    --operators_under_way;
    std::this_thread::yield();
  }
  ++own_operators;
}

UnderWay::~UnderWay() {
  if (--own_operators == 0) {
    --operators_under_way;
  }
}

void set_thread_enabled(bool enabled) {
  c10::impl::tls_set_dispatch_key_included(kKey, enabled);
  c10::impl::tls_set_dispatch_key_included(kKeyAboveAllBackends, enabled);
}

bool is_thread_enabled() {
  return c10::impl::tls_is_dispatch_key_included(kKey);
}

void run_operator(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  run_pinned(op, OperatorTraits(op), keys_after(keys, kKey), stack);
}

void run_inside(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet below,
    torch::jit::Stack* stack) {
  const AdoptionPause inside;
  run_once(op, OperatorTraits(op), below, stack, /*attempt=*/nullptr);
}

void pause_adoption() {
  ++adoption_pauses;
}

void resume_adoption() {
  --adoption_pauses;
}

bool is_adoption_paused() {
  return adoption_pauses > 0;
}

AdoptionPause::AdoptionPause() {
  pause_adoption();
}

AdoptionPause::~AdoptionPause() {
  resume_adoption();
}

} // namespace at::cuda::lms
