#include <ATen/cuda/detail/LMSOperators.h>

#include <ATen/core/dispatch/OperatorEntry.h>
#include <ATen/cuda/detail/LMSDevice.h>
#include <ATen/cuda/detail/LMSSettings.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <chrono>
#include <mutex>
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

// Operators that threads with interception run without pins, LMS being off.
std::atomic<int> unpinned_operators{0};
constexpr std::chrono::seconds kLongestWait{10};

struct Unpinned {
  Unpinned() {
    ++unpinned_operators;
  }
  Unpinned(const Unpinned&) = delete;
  Unpinned& operator=(const Unpinned&) = delete;
  ~Unpinned() {
    --unpinned_operators;
  }
};

// --- which storages an operator touches ---

struct Touched {
  c10::DeviceIndex device;
  c10::StorageImpl* storage;
};
using TouchedList = c10::SmallVector<Touched, 8>;

void gather(const c10::Storage& storage, TouchedList& out) {
  if (storage && storage.device_type() == c10::DeviceType::CUDA) {
    out.push_back({storage.device().index(), storage.unsafeGetStorageImpl()});
  }
}

void gather(const at::Tensor& tensor, TouchedList& out) {
  if (tensor.defined() && tensor.is_cuda() && tensor.has_storage()) {
    gather(tensor.unsafeGetTensorImpl()->unsafe_storage(), out);
  }
}

void gather(const IValue& value, TouchedList& out) {
  if (value.isTensor()) {
    gather(value.toTensor(), out);
  } else if (value.isList()) {
    for (const IValue& element : value.toListRef()) {
      if (!element.isTensor() && !element.isNone()) {
        break; // a list of something else
      }
      gather(element, out);
    }
  } else if (value.isStorage()) {
    gather(value.toStorage(), out);
  }
}

TouchedList touched_by(c10::ArrayRef<IValue> values) {
  TouchedList touched;
  for (const IValue& value : values) {
    gather(value, touched);
  }
  return touched;
}

// Takes the storages of one device out of the list.
Storages take_device(TouchedList& touched, c10::DeviceIndex device) {
  Storages taken;
  TouchedList rest;
  for (const Touched& entry : touched) {
    if (entry.device == device) {
      taken.push_back(entry.storage);
    } else {
      rest.push_back(entry);
    }
  }
  touched = std::move(rest);
  return taken;
}

// --- pinning around one operator ---

cudaStream_t current_stream(c10::DeviceIndex device) {
  return c10::cuda::getCurrentCUDAStream(device).stream();
}

class OperatorScope {
 public:
  explicit OperatorScope(c10::ArrayRef<IValue> arguments) {
    TouchedList touched = touched_by(arguments);
    try {
      while (!touched.empty()) {
        const auto index = touched.front().device;
        Device& device = Device::get(index);
        pinned_.push_back({&device, {}});
        pinned_.back().second = device.enter(
            take_device(touched, index),
            current_stream(index),
            /*adopt=*/adoption_pauses == 0);
      }
    } catch (...) {
      leave();
      throw;
    }
  }
  OperatorScope(const OperatorScope&) = delete;
  OperatorScope& operator=(const OperatorScope&) = delete;
  ~OperatorScope() {
    leave();
  }

  void adopt(c10::ArrayRef<IValue> results) {
    TouchedList touched = touched_by(results);
    for (auto& [device, pins] : pinned_) {
      device->leave(
          pins,
          take_device(touched, device->index()),
          current_stream(device->index()));
    }
    auto used = std::move(pinned_);
    pinned_.clear();
    while (!touched.empty()) {
      const auto index = touched.front().device;
      used.push_back({&Device::get(index), {}});
      used.back().first->leave(
          {}, take_device(touched, index), current_stream(index));
    }
    if (Settings::get().chaos()) {
      for (auto& [device, pins] : used) {
        device->reclaim({}, Device::Scope::kAll);
      }
    }
  }

 private:
  void leave() {
    for (auto& [device, pins] : pinned_) {
      device->leave(pins);
    }
    pinned_.clear();
  }

  c10::SmallVector<std::pair<Device*, Pins>, 1> pinned_;
};

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

void operator_kernel(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  run_operator(op, keys, stack);
}

void list_operator_kernel(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  run_list_operator(op, keys, stack);
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
        c10::KernelFunction::makeFromBoxedFunction<&operator_kernel>(),
        "Large Model Support"));
    handles_.push_back(Dispatcher::singleton().addRegistrationListener(
        std::make_unique<NewOperators>()));
  }

  void add_operators() {
    std::lock_guard<std::mutex> lock(mutex_);
    has_new_operators.store(false);
    for (const auto& name : Dispatcher::singleton().getAllOpNames()) {
      const auto op = Dispatcher::singleton().findOp(name);
      if (!op || !op->hasSchema() || seen_.count(name) || !runs_on_cuda(*op)) {
        continue; // looked at again when more is registered
      }
      seen_.insert(name);
      handles_.push_back(Dispatcher::singleton().registerImpl(
          name,
          kKey,
          kernel_for(op->schema()),
          /*cpp_signature=*/std::nullopt,
          /*inferred_function_schema=*/nullptr,
          "Large Model Support"));
    }
  }

 private:
  static c10::KernelFunction kernel_for(const c10::FunctionSchema& schema) {
    if (touches_no_bytes(schema)) {
      return c10::KernelFunction::makeFallthrough();
    }
    return is_list_operator(schema)
        ? c10::KernelFunction::makeFromBoxedFunction<&list_operator_kernel>()
        : c10::KernelFunction::makeFromBoxedFunction<&operator_kernel>();
  }

  std::mutex mutex_;
  std::unordered_set<c10::OperatorName> seen_;
  std::vector<c10::RegistrationHandleRAII> handles_;
};

} // namespace

void intercept_operators() {
  static auto* interception = new Interception(); // leaked: see Dispatcher
  interception->add_operators();
}

void wait_for_unpinned_operators() {
  const auto give_up = std::chrono::steady_clock::now() + kLongestWait;
  while (unpinned_operators.load() > 0 &&
         std::chrono::steady_clock::now() < give_up) {
    std::this_thread::yield();
  }
}

void set_thread_enabled(bool enabled) {
  c10::impl::tls_set_dispatch_key_included(kKey, enabled);
}

void run_operator(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  const auto below =
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  if (!Settings::get().active()) {
    const Unpinned unpinned;
    if (!Settings::get().active()) { // still so now that it is counted
      op.redispatchBoxed(below, stack);
      return;
    }
  }
  if (C10_UNLIKELY(has_new_operators.load(std::memory_order_relaxed))) {
    intercept_operators();
  }
  const auto& schema = op.schema();
  OperatorScope scope(torch::jit::last(*stack, schema.arguments().size()));
  {
    AdoptionPause inside;
    op.redispatchBoxed(below, stack);
  }
  if (adoption_pauses == 0) {
    scope.adopt(torch::jit::last(*stack, schema.returns().size()));
  }
}

void pause_adoption() {
  ++adoption_pauses;
}

void resume_adoption() {
  --adoption_pauses;
}

AdoptionPause::AdoptionPause() {
  pause_adoption();
}

AdoptionPause::~AdoptionPause() {
  resume_adoption();
}

} // namespace at::cuda::lms
