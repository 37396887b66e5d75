#include <ATen/cuda/detail/LMSOperators.h>

#include <ATen/core/dispatch/OperatorEntry.h>
#include <ATen/cuda/detail/LMSDevice.h>
#include <ATen/cuda/detail/LMSSettings.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/cuda/CUDAStream.h>

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

// Operators that began while nothing was adopted, so that they may run on
// storages without pins; and those of the thread.
std::atomic<int> unpinned_operators{0};
thread_local int own_unpinned_operators = 0;
std::atomic<bool> is_enabling{false};
constexpr std::chrono::seconds kLongestWait{10};

// Counts an operator that begins while nothing is adopted.
class Unpinned {
 public:
  Unpinned() {
    while (!Settings::get().enabled()) {
      ++unpinned_operators;
      // Looked at after counting: enable_adoption looks the other way round.
      if (!is_enabling.load() || own_unpinned_operators > 0) {
        is_counted_ = true;
        ++own_unpinned_operators;
        return;
      }
      --unpinned_operators;
      std::this_thread::yield();
    }
  }
  Unpinned(const Unpinned&) = delete;
  Unpinned& operator=(const Unpinned&) = delete;
  ~Unpinned() {
    if (is_counted_) {
      --own_unpinned_operators;
      --unpinned_operators;
    }
  }

 private:
  bool is_counted_ = false;
};

// --- which storages an operator touches ---

struct Touched {
  c10::DeviceIndex device;
  Access access;
};
using TouchedList = c10::SmallVector<Touched, 8>;

void gather(const c10::Storage& storage, bool writes, TouchedList& out) {
  if (storage && storage.device_type() == c10::DeviceType::CUDA) {
    out.push_back(
        {storage.device().index(), {storage.unsafeGetStorageImpl(), writes}});
  }
}

void gather(const at::Tensor& tensor, bool writes, TouchedList& out) {
  if (tensor.defined() && tensor.is_cuda() && tensor.has_storage()) {
    gather(tensor.unsafeGetTensorImpl()->unsafe_storage(), writes, out);
  }
}

void gather(const IValue& value, bool writes, TouchedList& out) {
  if (value.isTensor()) {
    gather(value.toTensor(), writes, out);
  } else if (value.isList()) {
    for (const IValue& element : value.toListRef()) {
      if (!element.isTensor() && !element.isNone()) {
        break; // a list of something else
      }
      gather(element, writes, out);
    }
  } else if (value.isStorage()) {
    gather(value.toStorage(), writes, out);
  }
}

// What the schema says about writes can be relied on for PyTorch's own
// operators, but for a few older ones that update an argument silently.
bool declares_writes(const c10::FunctionSchema& schema) {
  const std::string& name = schema.name();
  const auto is_from = [&](const char* space) {
    return name.rfind(space, 0) == 0;
  };
  if (!is_from("aten::") && !is_from("prims::")) {
    return false;
  }
  for (const char* silent :
       {"batch_norm", "_rnn", "rrelu_with_noise", "_copy_from"}) {
    if (name.find(silent) != std::string::npos) {
      return false;
    }
  }
  return true;
}

TouchedList touched_by_arguments(
    const c10::FunctionSchema& schema,
    c10::ArrayRef<IValue> values) {
  TouchedList touched;
  const bool declared = declares_writes(schema);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    gather(values[i], !declared || (alias && alias->isWrite()), touched);
  }
  return touched;
}

TouchedList touched_by_results(c10::ArrayRef<IValue> values) {
  TouchedList touched;
  for (const IValue& value : values) {
    gather(value, /*writes=*/true, touched);
  }
  return touched;
}

// Takes the storages of one device out of the list.
Accesses take_device(TouchedList& touched, c10::DeviceIndex device) {
  Accesses taken;
  TouchedList rest;
  for (const Touched& entry : touched) {
    if (entry.device == device) {
      taken.push_back(entry.access);
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
  OperatorScope(
      const c10::FunctionSchema& schema,
      c10::DispatchKeySet keys,
      c10::ArrayRef<IValue> arguments)
      : name_(std::hash<c10::OperatorName>()(schema.operator_name())) {
    TouchedList touched = touched_by_arguments(schema, arguments);
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
      if (C10_UNLIKELY(Trace::get() != nullptr) && adoption_pauses == 0 &&
          keys.has_backend(c10::BackendComponent::CUDABit)) {
        span_ = Trace::begin(schema.operator_name());
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
    Trace::end(span_);
    TouchedList touched = touched_by_results(results);
    auto used = std::move(pinned_);
    pinned_.clear();
    for (const Touched& entry : touched) {
      const auto* device = &Device::get(entry.device);
      if (std::none_of(used.begin(), used.end(), [&](const auto& pinned) {
            return pinned.first == device;
          })) {
        used.push_back({&Device::get(entry.device), {}});
      }
    }
    for (auto& [device, pins] : used) {
      device->leave(
          pins,
          take_device(touched, device->index()),
          current_stream(device->index()),
          name_,
          span_);
    }
    if (span_.begin) {
      Trace::write_completed();
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

  const uint64_t name_;
  Trace::Span span_;
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

void enable_adoption() {
  is_enabling.store(true);
  const auto give_up = std::chrono::steady_clock::now() + kLongestWait;
  while (unpinned_operators.load() > 0 &&
         std::chrono::steady_clock::now() < give_up) {
    std::this_thread::yield();
  }
  Settings::get().set_enabled(true);
  is_enabling.store(false);
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
  const Unpinned unpinned;
  if (!Settings::get().active()) {
    op.redispatchBoxed(below, stack);
    return;
  }
  if (C10_UNLIKELY(has_new_operators.load(std::memory_order_relaxed))) {
    intercept_operators();
  }
  const auto& schema = op.schema();
  OperatorScope scope(
      schema, below, torch::jit::last(*stack, schema.arguments().size()));
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
