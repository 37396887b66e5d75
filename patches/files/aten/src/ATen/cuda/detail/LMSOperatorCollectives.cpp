#include <ATen/cuda/detail/LMSOperatorCollectives.h>

#include <ATen/cuda/detail/LMSCudaCaptures.h>
#include <ATen/cuda/detail/LMSOperators.h>
#include <ATen/cuda/detail/LMSSettings.h>
#include <ATen/cuda/detail/LMSOperatorTouched.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <typeinfo>
#include <utility>
#include <vector>

namespace at::cuda::lms {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// The classes are private to their files.
bool is_made_by(const c10d::Work& work, const char* class_name) {
  return std::strstr(typeid(work).name(), class_name) != nullptr;
}

// Done by whoever waits for it, with operators like others, on copies of the
// arguments: Gloo's reduce_scatter. It never says that it has completed.
bool is_lazy(const c10d::Work& work) {
  return is_made_by(work, "LambdaWork");
}

// Whether an operator that returns no Work is queued on the current stream, in
// a group when that ends.
bool is_synchronous(
    const c10::FunctionSchema& schema,
    c10::ArrayRef<c10::IValue> arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& name = schema.arguments()[i].name();
    if (name == "async_op" || name == "asyncOp") { // the latter until 2.7
      return !arguments[i].toBool();
    }
  }
  return false;
}

// Which process group an operator works for, if any.
const void* process_group_of(
    const c10::FunctionSchema& schema,
    c10::ArrayRef<c10::IValue> arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (schema.arguments()[i].name() == "process_group") {
      return arguments[i].toCustomClass<c10d::ProcessGroup>().get();
    }
  }
  return nullptr;
}

bool is_nccl(const c10d::Work& work) {
  return is_made_by(work, "ProcessGroupNCCL");
}

// A collective's pins, which belong to no thread, until it is destroyed.
class Collective {
 public:
  explicit Collective(PinsByDevice pinned) : pinned_(std::move(pinned)) {
    for (const auto& [device, pins] : pinned_) {
      device->disown(pins);
    }
  }
  Collective(Collective&& other) noexcept
      : works_(std::exchange(other.works_, {})),
        pinned_(std::exchange(other.pinned_, {})) {}
  Collective& operator=(Collective&& other) noexcept {
    std::swap(works_, other.works_);
    std::swap(pinned_, other.pinned_);
    return *this;
  }
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;
  ~Collective() {
    for (const auto& [device, pins] : pinned_) {
      device->unpin_disowned(pins);
    }
  }

  void add_work(WorkPtr work) {
    works_.push_back(std::move(work));
  }

  bool has_work() const {
    return !works_.empty();
  }

  // For one without a Work of which nothing else is known.
  void hold() const {
    for (const auto& [device, pins] : pinned_) {
      for (const Pin& pin : pins) {
        device->hold(pin.record);
      }
    }
  }

  bool has_completed() const {
    const BesideCaptures beside;
    return std::all_of(works_.begin(), works_.end(), [](const auto& work) {
      return work->isCompleted();
    });
  }

  // Whether it may have queued more than its works tell of.
  bool needs_device() const {
    return works_.empty() ||
        !std::all_of(works_.begin(), works_.end(), [](const auto& work) {
             return is_nccl(*work);
           });
  }

  void wait_for_device() const {
    for (const auto& [device, pins] : pinned_) {
      c10::cuda::CUDAGuard guard(device->index());
      // The host waits because copies that the collective has queued, on
      // streams that nobody knows, may still be under way.
      C10_CUDA_CHECK(cudaDeviceSynchronize());
    }
  }

 private:
  c10::SmallVector<WorkPtr, 2> works_; // all that have to complete
  PinsByDevice pinned_;
};

// What a thread has asked for since it began a group.
struct Group {
  int depth = 0; // groups within groups are launched when the outermost ends
  bool is_nested = false;
  bool is_queued = true; // all of it on current streams
  const void* process_group = nullptr; // of the first collective
  bool has_several = false; // process groups
  std::vector<Collective> collectives;

  void add(Collective collective, const void* owner, bool is_synchronous) {
    has_several = has_several || (process_group && owner != process_group);
    process_group = owner;
    is_queued = is_queued && is_synchronous;
    collectives.push_back(std::move(collective));
  }
};
thread_local Group group;

// Those under way. The mutex is held for moves only: a Work may be a Python
// object, and to ask it or let it go may take the GIL.
std::mutex mutex;
std::vector<Collective>& under_way() {
  static auto* collectives = new std::vector<Collective>(); // outlives devices
  return *collectives;
}
std::atomic<size_t> count{0};

void add(Collective collective) {
  std::lock_guard<std::mutex> lock(mutex);
  under_way().push_back(std::move(collective));
  ++count;
}

std::vector<Collective> take_all() {
  std::lock_guard<std::mutex> lock(mutex);
  count = 0;
  return std::exchange(under_way(), {});
}

// The Work among an operator's results; null if it has none.
WorkPtr find_work(c10::ArrayRef<c10::IValue> results) {
  for (const c10::IValue& result : results) {
    if (result.isCustomClass()) {
      return result.toCustomClass<c10d::Work>();
    }
  }
  return {};
}

bool is_functional(const c10::FunctionSchema& schema) {
  return schema.name().rfind("_c10d_functional::", 0) == 0;
}

} // namespace

void begin_group() {
  group.is_nested = group.depth > 0;
  ++group.depth;
}

void end_group(const c10::IValue& work) {
  if (group.depth == 0) {
    return; // it began before LMS was on
  }
  --group.depth;
  if (group.depth > 0) {
    return;
  }
  Group launched = std::exchange(group, {});
  const bool is_told_by_work =
      !work.isNone() && !launched.has_several && !launched.is_nested;
  for (Collective& collective : launched.collectives) {
    if (is_told_by_work) {
      collective.add_work(work.toCustomClass<c10d::Work>());
    } else if (launched.is_queued && collective.has_completed()) {
      continue; // unpinned: the streams' order does the rest
    }
    add(std::move(collective));
  }
}

bool is_collective(const c10::FunctionSchema& schema) {
  return schema.name().rfind("c10d::", 0) == 0 ||
      (is_functional(schema) &&
       schema.name() != "_c10d_functional::wait_tensor");
}

void run_collective(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  const UnderWay counted;
  if (!Settings::get().active()) {
    run_operator(op, keys, stack);
    return;
  }
  if (C10_UNLIKELY(Settings::get().set_distributed())) {
    for (Device* device : Device::all()) {
      device->checks().renew();
    }
  }
  release_completed_collectives();
  const auto& schema = op.schema();
  const auto arguments = torch::jit::last(*stack, schema.arguments().size());
  const bool is_queued = is_synchronous(schema, arguments);
  const void* owner = process_group_of(schema, arguments);
  auto pinned = pin_arguments(
      OperatorTraits(op), schema, arguments, !is_adoption_paused());
  if (is_functional(schema)) {
    const auto at_end = c10::make_scope_exit([&] { unpin(pinned); });
    const AdoptionPause unwritten;
    run_operator(op, keys, stack);
    return;
  }
  if (pinned.empty()) { // it works on the CPU
    run_operator(op, keys, stack);
    return;
  }
  Collective collective(std::move(pinned));
  run_operator(op, keys, stack);
  auto work = find_work(torch::jit::last(*stack, schema.returns().size()));
  if (work && is_lazy(*work)) {
    return;
  }
  const bool is_grouped = group.depth > 0;
  if (work && !(is_grouped && is_nccl(*work))) {
    collective.add_work(std::move(work));
  }
  if (is_grouped) {
    group.add(std::move(collective), owner, is_queued);
  } else if (!collective.has_work()) {
    if (!is_queued) {
      collective.hold();
    }
  } else {
    add(std::move(collective));
  }
}

void release_completed_collectives() noexcept {
  if (count.load(std::memory_order_relaxed) == 0 || is_capturing()) {
    return; // nothing may be waited for in a capture
  }
  for (Collective& collective : take_all()) {
    try {
      const bool has_completed = collective.has_completed();
      const bool needs_device = collective.needs_device();
      if (!has_completed || (needs_device && may_be_captures())) {
        add(std::move(collective));
      } else if (needs_device) {
        collective.wait_for_device();
      }
    } catch (const std::exception& error) {
      // The device has failed: what comes next on it fails too, and says so.
      TORCH_WARN_ONCE("LMS lost sight of a collective: ", error.what());
    }
  }
}

void look_after_collectives() noexcept {
  constexpr uint32_t kEvery = 16; // operators: to ask takes microseconds
  static thread_local uint32_t operators = 0;
  if (C10_UNLIKELY(count.load(std::memory_order_relaxed) > 0) &&
      ++operators % kEvery == 0) {
    release_completed_collectives();
  }
}

} // namespace at::cuda::lms
