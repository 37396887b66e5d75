#include <ATen/cuda/LargeModelSupport.h>

#include <ATen/cuda/detail/LMSAllocator.h>
#include <ATen/cuda/detail/LMSOperatorBackward.h>
#include <ATen/cuda/detail/LMSOperatorCollectives.h>
#include <ATen/cuda/detail/LMSOperatorKernel.h>
#include <ATen/cuda/detail/LMSOperatorLaunch.h>
#include <ATen/cuda/detail/LMSDevice.h>
#include <ATen/cuda/detail/LMSDeviceLoading.h>
#include <ATen/cuda/detail/LMSDeviceReport.h>
#include <ATen/cuda/detail/LMSHostDisk.h>
#include <ATen/cuda/detail/LMSHostMemory.h>
#include <ATen/cuda/detail/LMSWaits.h>
#include <ATen/cuda/detail/LMSOperators.h>
#include <ATen/cuda/detail/LMSSettings.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include <mutex>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace at::cuda::lms {
namespace {

// LMS does not know which streams used what exists already. The host waits for
// all of them, once.
void wait_for_all_streams() {
  for (c10::DeviceIndex i = 0; i < c10::cuda::device_count(); ++i) {
    if (c10::cuda::hasPrimaryContext(i)) {
      c10::cuda::CUDAGuard guard(i);
      C10_CUDA_CHECK(cudaDeviceSynchronize());
    }
  }
}

void warn_if_alone() {
  if (!HostMemory::get().is_shared() && !HostLedger::default_files().empty()) {
    TORCH_WARN_ONCE(
        "LMS cannot write to any of ",
        HostLedger::default_files(),
        ", where processes note how much host memory they take. The limit of "
        "host memory holds for each process alone. Set "
        "PYTORCH_LMS_HOST_LEDGER to a file that can be written, or to none.");
  }
}

void apply_limits(const std::vector<Device*>& devices) {
  for (Device* device : devices) {
    device->limit().set(device->limit().requested());
  }
}

} // namespace

void set_enabled(bool enabled) {
  auto& settings = Settings::get();
  if (enabled) {
    Allocator::get().install();
    intercept_operators();
    wait_for_all_streams();
    warn_if_alone();
    settings.set_active(true);
    enable_adoption();
    set_thread_enabled(true);
    apply_limits(Device::all());
    return;
  }
  const auto devices = Device::all();
  // Operators of other threads go on: they adopt nothing from here on, and pin
  // what is still managed.
  settings.set_enabled(false);
  try {
    for (Device* device : devices) {
      device->limit().remove();
      device->bring_all_back();
    }
  } catch (...) {
    enable_adoption();
    apply_limits(devices);
    throw;
  }
  settings.set_active(false);
  set_thread_enabled(false);
  Allocator::get().uninstall();
  HostMemory::get().trim();
}

bool is_enabled() {
  return Settings::get().enabled();
}

void enable_thread() {
  set_thread_enabled(Settings::get().enabled());
}

void* hold(const c10::Storage& storage) {
  if (ManagedStorage* record = record_of(storage)) {
    record->device.hold(record);
  }
  return storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
}

PinGuard::PinGuard(const c10::Storage& storage) {
  if (!is_enabled() || storage.device_type() != c10::DeviceType::CUDA) {
    return;
  }
  const auto index = storage.device().index();
  const Pins pins = Device::get(index).pin(
      {{storage.unsafeGetStorageImpl(), /*writes=*/true}},
      c10::cuda::getCurrentCUDAStream(index).stream(),
      /*adopt=*/true);
  pinned_ = pins.empty() ? nullptr : pins.front().record;
}

PinGuard::~PinGuard() {
  if (pinned_) {
    pinned_->unpin(pinned_);
  }
}

c10::lms::Context* PinGuard::release() {
  return std::exchange(pinned_, nullptr);
}

void release(const c10::Storage& storage) {
  if (ManagedStorage* record = record_of(storage)) {
    record->device.release(storage.unsafeGetStorageImpl());
  }
}

void reclaim_inactive() {
  for (Device* device : Device::all()) {
    device->room().reclaim({}, Scope::kAll, /*may_wait=*/true);
  }
}

namespace {

using StatsDict = c10::Dict<std::string, int64_t>;

void insert(StatsDict& dict, const std::string& name, const Level& level) {
  dict.insert(name + ".current", level.current);
  dict.insert(name + ".peak", level.peak);
  dict.insert(name + ".allocated", level.allocated);
  dict.insert(name + ".freed", level.freed);
}

void insert(
    StatsDict& dict,
    const std::string& name,
    const std::array<Level, kPools>& levels) {
  insert(dict, name + ".all", levels[kAll]);
  insert(dict, name + ".small_pool", levels[kSmallPool]);
  insert(dict, name + ".large_pool", levels[kLargePool]);
}

void insert(StatsDict& dict, const std::string& name, const Traffic& traffic) {
  dict.insert(name + ".copies", traffic.copies);
  dict.insert(name + ".bytes", traffic.bytes);
}

void insert_times(StatsDict& dict, const DeviceStats& stats) {
  const auto spent = [&stats](Activity activity) -> const TimeSpent& {
    return stats.times.at(static_cast<size_t>(activity));
  };
  for (const auto& [name, activity] :
       {std::pair("lms.moved.us", Activity::kMove),
        std::pair("lms.recompute.us", Activity::kMake),
        std::pair("lms.disk_write.us", Activity::kWriteDisk),
        std::pair("lms.disk_read.us", Activity::kReadDisk)}) {
    dict.insert(name, static_cast<int64_t>(spent(activity).us));
  }
  int64_t copied = 0; // microseconds, as below
  for (const auto& [name, activity] :
       {std::pair("lms.page_in.us", Activity::kPageIn),
        std::pair("lms.page_out.us", Activity::kPageOut)}) {
    const auto us = static_cast<int64_t>(spent(activity).us);
    dict.insert(name, us);
    copied += us;
  }
  int64_t waited = 0;
  for (const auto& [name, activity] :
       {std::pair("lms.stall.demand", Activity::kWaitForDemand),
        std::pair("lms.stall.ahead", Activity::kWaitForAhead),
        std::pair("lms.stall.memory", Activity::kWaitForMemory)}) {
    const auto us = static_cast<int64_t>(spent(activity).us);
    dict.insert(std::string(name) + ".times", spent(activity).times);
    dict.insert(std::string(name) + ".us", us);
    waited += us;
  }
  const int64_t shown = std::min(copied, waited);
  dict.insert(
      "lms.hidden_percent",
      copied == 0 ? 100 : 100 * (copied - shown) / copied);
  dict.insert("lms.prefetch.hits", spent(Activity::kWaitForAhead).none);
  dict.insert("lms.prefetch.late", spent(Activity::kWaitForAhead).times);
  dict.insert("lms.prefetch.wasted", stats.fetched_in_vain);
}

constexpr std::array<const char*, static_cast<size_t>(AllocSource::kCount)>
    kSourceNames{
        "freelist",
        "cudamalloc",
        "reclaim_one",
        "reclaim_fragments",
        "reclaim_all",
        "cudamalloc_retry"};

StatsDict device_stats(int64_t index) {
  Device* device = Device::find(static_cast<c10::DeviceIndex>(index));
  const DeviceStats stats = device ? stats_of(*device) : DeviceStats{};
  const auto host = HostMemory::get().stats();
  StatsDict dict;
  insert(dict, "pinned", stats.pinned);
  insert(dict, "pinned_bytes", stats.pinned_bytes);
  dict.insert("reclaimed", stats.reclaimed);
  dict.insert("reclaimed_bytes", stats.reclaimed_bytes);
  dict.insert("lms.dropped", stats.dropped);
  dict.insert("lms.dropped_bytes", stats.dropped_bytes);
  for (size_t i = 0; i < kSourceNames.size(); ++i) {
    dict.insert(
        std::string("alloc_distribution.") + kSourceNames[i],
        stats.alloc_distribution[i]);
  }
  insert(dict, "lms.managed", stats.managed);
  insert(dict, "lms.managed_bytes", stats.managed_bytes);
  insert(dict, "lms.paged_out_bytes", stats.paged_out_bytes);
  insert(dict, "lms.page_out", stats.paged_out);
  insert(dict, "lms.page_in", stats.paged_in);
  insert(dict, "lms.page_in.ahead", stats.fetched_ahead);
  insert(dict, "lms.moved", stats.moved);
  insert(dict, "lms.on_disk_bytes", stats.on_disk_bytes);
  insert(dict, "lms.disk_write", stats.written_to_disk);
  insert(dict, "lms.disk_read", stats.read_from_disk);
  dict.insert("lms.hints.overruled", stats.overruled);
  dict.insert("lms.recompute.count", stats.made.copies);
  dict.insert("lms.recompute.bytes", stats.made.bytes);
  insert_times(dict, stats);
  dict.insert("lms.free_bytes.all", static_cast<int64_t>(stats.free_bytes));
  dict.insert(
      "lms.free_bytes.largest", static_cast<int64_t>(stats.largest_free_bytes));
  dict.insert("lms.host_bytes.current", static_cast<int64_t>(host.used));
  dict.insert("lms.host_bytes.peak", static_cast<int64_t>(host.peak_used));
  dict.insert("lms.host_bytes.reserved", static_cast<int64_t>(host.reserved));
  dict.insert(
      "lms.host_bytes.page_locked", static_cast<int64_t>(host.page_locked));
  dict.insert("lms.host_bytes.others", static_cast<int64_t>(host.others));
  dict.insert("lms.host_bytes.limit", static_cast<int64_t>(host.limit));
  const auto chosen = Disk::chosen();
  const auto disk = chosen ? chosen->stats() : Disk::Stats{};
  dict.insert("lms.disk_bytes.current", static_cast<int64_t>(disk.used));
  dict.insert("lms.disk_bytes.others", static_cast<int64_t>(disk.others));
  dict.insert("lms.disk_bytes.limit", static_cast<int64_t>(disk.limit));
  if (device) {
    dict.insert(
        "num_ooms", Allocator::get().getDeviceStats(device->index()).num_ooms);
  }
  return dict;
}

void reset_peak_stats(int64_t index) {
  if (Device* device = Device::find(static_cast<c10::DeviceIndex>(index))) {
    reset_peaks(*device);
  }
  HostMemory::get().reset_peak();
}

// Three numbers for each: id, bytes, place.
std::vector<int64_t> device_pages_away(int64_t index) {
  std::vector<int64_t> numbers;
  if (Device* device = Device::find(static_cast<c10::DeviceIndex>(index))) {
    for (const PageAway& page : pages_away(*device)) {
      numbers.push_back(static_cast<int64_t>(page.id));
      numbers.push_back(static_cast<int64_t>(page.bytes));
      numbers.push_back(static_cast<int64_t>(page.place));
    }
  }
  return numbers;
}

// The pins that Python holds. Anybody can call an operator with any number, so
// what stands for a pin is no address, and one that was not given out is an
// error. Numbers are not given out in order: a stale one is no other's pin.
class PinTable {
 public:
  static PinTable& get() {
    static auto* table = new PinTable(); // leaked: pins may outlive statics
    return *table;
  }

  // Never 0.
  int64_t add(c10::lms::Context* pinned) {
    std::lock_guard<std::mutex> lock(mutex_);
    while (true) {
      const auto handle = static_cast<int64_t>(random_() >> 1);
      if (handle != 0 && pins_.emplace(handle, pinned).second) {
        return handle;
      }
    }
  }

  c10::lms::Context* take(int64_t handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = pins_.find(handle);
    TORCH_CHECK(
        found != pins_.end(),
        "lms::unpin: ",
        handle,
        " is no pin, or one that was given back already.");
    auto* pinned = found->second;
    pins_.erase(found);
    return pinned;
  }

 private:
  std::mutex mutex_; // no other is taken under it
  std::mt19937_64 random_{std::random_device{}()};
  std::unordered_map<int64_t, c10::lms::Context*> pins_;
};

// `turn` and `again`: the numbers of Hint's.
void set_hint(
    const c10::Storage& storage,
    int64_t turn,
    int64_t again,
    bool on_host) {
  TORCH_CHECK_VALUE(
      turn >= 0 && turn < static_cast<int64_t>(Hint::Turn::kCount) &&
          again >= 0 && again < static_cast<int64_t>(Hint::Again::kCount),
      "lms::set_hint: there is no such hint.");
  if (storage.device_type() == c10::DeviceType::CUDA) {
    Device::get(storage.device().index())
        .set_hint(
            storage.unsafeGetStorageImpl(),
            {static_cast<Hint::Turn>(turn),
             static_cast<Hint::Again>(again),
             on_host});
  }
}

void tell_policy(int64_t index, void (Policy::*what)(uint64_t), int64_t job) {
  Device& device = Device::get(static_cast<c10::DeviceIndex>(index));
  const Lock lock(device.mutex());
  ((*device.pager().books.policy).*what)(static_cast<uint64_t>(job));
}

int64_t take_pin(const c10::Storage& storage) {
  PinGuard guard(storage);
  auto* pinned = guard.release();
  return pinned ? PinTable::get().add(pinned) : 0;
}

void give_back_pin(int64_t handle) {
  if (handle != 0) {
    auto* pinned = PinTable::get().take(handle);
    pinned->unpin(pinned);
  }
}

} // namespace

TORCH_LIBRARY(lms, m) {
  m.def("set_enabled(bool enabled) -> ()", set_enabled);
  m.def("is_enabled() -> bool", is_enabled);
  m.def("enable_thread() -> ()", enable_thread);
  m.def("set_chaos(bool chaos) -> ()", [](bool chaos) {
    const PolicyKind* policy = find_policy("chaos");
    if (chaos || &Settings::get().policy() == policy) {
      Settings::get().set_policy(chaos ? *policy : *find_policy("planned"));
    }
  });
  m.def("set_profiled(bool profiled) -> ()", [](bool profiled) {
    Settings::get().set_profiled(profiled);
    for (Device* device : Device::all()) {
      device->checks().renew();
    }
  });
  // Before the first device is used.
  m.def("set_policy(str name) -> ()", [](const std::string& name) {
    const PolicyKind* policy = find_policy(name);
    TORCH_CHECK_VALUE(
        policy != nullptr,
        "PYTORCH_LMS_CONF names the policy ",
        name,
        "; there are: ",
        policy_names());
    Settings::get().set_policy(*policy);
  });
  m.def("set_recompute(bool recompute) -> ()", [](bool recompute) {
    Settings::get().set_recompute(recompute);
  });
  m.def("set_verify(bool verify) -> ()", [](bool verify) {
    Settings::get().set_verify(verify);
  });
  m.def("compared() -> int", Recipes::compared);
  m.def("differing() -> str[]", Recipes::differing);
  m.def("get_recompute() -> bool", [] { return Settings::get().recompute(); });
  m.def("set_limit(int device, int bytes) -> ()", [](int64_t i, int64_t bytes) {
    Device::get(static_cast<c10::DeviceIndex>(i))
        .limit()
        .set(static_cast<size_t>(bytes));
  });
  m.def("set_default_limit(int bytes) -> ()", [](int64_t bytes) {
    Settings::get().set_default_limit(static_cast<size_t>(bytes));
    for (Device* device : Device::all()) {
      device->limit().set(static_cast<size_t>(bytes));
    }
  });
  m.def("apply_limits() -> ()", [] { apply_limits(Device::all()); });
  m.def("stop_sharing() -> ()", Sharing::stop_all);
  m.def("get_limit(int device) -> int", [](int64_t i) {
    return static_cast<int64_t>(
        Device::get(static_cast<c10::DeviceIndex>(i)).limit().bytes());
  });
  m.def("set_min_bytes(int bytes) -> ()", [](int64_t bytes) {
    Settings::get().set_min_bytes(static_cast<size_t>(bytes));
  });
  m.def("get_min_bytes() -> int", [] {
    return static_cast<int64_t>(Settings::get().min_bytes());
  });
  m.def(
      "set_disk(str folder, int bytes) -> ()",
      [](std::string folder, int64_t bytes) {
        const auto limit = static_cast<size_t>(bytes);
        Disk::choose(
            folder.empty() ? nullptr
                           : std::make_shared<Disk>(std::move(folder), limit));
      });
  m.def("get_disk() -> str", [] {
    const auto disk = Disk::chosen();
    return disk ? disk->folder() : std::string();
  });
  m.def("set_host_limit(int bytes) -> ()", [](int64_t bytes) {
    HostMemory::get().set_limit(static_cast<size_t>(bytes));
  });
  m.def("stats(int device) -> Dict(str, int)", device_stats);
  m.def("pages_away(int device) -> int[]", device_pages_away);
  m.def("reset_peak_stats(int device) -> ()", reset_peak_stats);
  m.def("reclaim_inactive() -> ()", reclaim_inactive);
  // Storages are passed as such, not as numbers: see PinTable.
  m.def("hold(Storage storage) -> int", [](const c10::Storage& storage) {
    return reinterpret_cast<int64_t>(hold(storage));
  });
  // 0 for a storage that is not managed.
  m.def("identity(Storage storage) -> int", [](const c10::Storage& storage) {
    ManagedStorage* record = record_of(storage);
    return record ? static_cast<int64_t>(record->device.identity(record)) : 0;
  });
  // 0 for a storage that is not managed.
  m.def("pin(Storage storage) -> int", take_pin);
  m.def("unpin(int pin) -> ()", give_back_pin);
  m.def("adopt(Storage storage) -> ()", [](const c10::Storage& storage) {
    if (storage.device_type() == c10::DeviceType::CUDA) {
      Device::get(storage.device().index())
          .adopt_existing(storage.unsafeGetStorageImpl());
    }
  });
  // None where it has to be made on the device.
  m.def(
      "load_to_host(Tensor source, int device) -> Tensor?",
      [](const at::Tensor& source, int64_t i) {
        return load_to_host(source, static_cast<c10::DeviceIndex>(i));
      });
  // None where it has to be copied. References as storage_references counts
  // them.
  m.def(
      "move_to_device(Storage storage, int references, int device) -> Tensor?",
      [](const c10::Storage& storage, int64_t references, int64_t i) {
        return move_to_device(
            storage, references, static_cast<c10::DeviceIndex>(i));
      });
  m.def(
      "storage_references(Storage storage) -> int",
      [](const c10::Storage& storage) {
        return static_cast<int64_t>(storage.use_count());
      });
  m.def(
      "set_hint(Storage storage, int turn, int again, bool on_host) -> ()",
      set_hint);
  // Jobs that take turns on a device; 0 stands for none of them.
  m.def("begin_turn(int device, int job) -> ()", [](int64_t i, int64_t job) {
    tell_policy(i, &Policy::begin_turn, job);
  });
  m.def(
      "announce_turn(int device, int next) -> ()", [](int64_t i, int64_t next) {
        tell_policy(i, &Policy::announce_turn, next);
      });
  m.def("end_job(int device, int job) -> ()", [](int64_t i, int64_t job) {
    tell_policy(i, &Policy::end_job, job);
  });
  // The addresses of two functions of C that take a device's number, which are
  // called before and after the host waits for the device; 0: none.
  m.def("watch_waits(int begin, int end) -> ()", watch_waits);
  m.def("release(Storage storage) -> ()", release);
  m.def(
      "is_resident(Storage storage) -> bool", [](const c10::Storage& storage) {
        ManagedStorage* record = record_of(storage);
        return !record || record->device.is_resident(record);
      });
  // See Note [Gradients that cross streams].
  m.def("uses_several_streams() -> bool", uses_several_streams);
  m.def("begin_backward() -> ()", begin_backward);
  m.def("end_backward() -> ()", end_backward);
  m.def("set_autograd_scope(int scope) -> int", [](int64_t scope) {
    return static_cast<int64_t>(
        set_autograd_scope(static_cast<AutogradScope>(scope)));
  });
  m.def("let_cross(Storage storage) -> ()", [](const c10::Storage& storage) {
    if (ManagedStorage* record = record_of(storage)) {
      record->device.checks().let_cross(record->impl());
    }
  });
  m.def(
      "open_trace(str path, str header) -> ()",
      [](const std::string& path, const std::string& header) {
        Trace::open(path, header);
      });
  m.def("step_trace() -> ()", Trace::step);
  m.def("close_trace() -> ()", Trace::close);
  m.def("open_report(int device) -> ()", [](int64_t i) {
    Device& device = Device::get(static_cast<c10::DeviceIndex>(i));
    Trace::open_report(device.index(), device.pager().books);
  });
  m.def("close_report() -> str", Trace::close_report);
  m.def("enter_module(str name) -> ()", Trace::enter_module);
  // As traces and reports have it; 0 for a storage that is not managed.
  m.def("storage_id(Storage storage) -> int", [](const c10::Storage& storage) {
    ManagedStorage* record = record_of(storage);
    return record ? static_cast<int64_t>(record->id) : 0;
  });
  // See Note [Launches].
  m.def(
      "begin_launch(str name, Tensor[] arguments, int written) -> ()",
      [](const std::string& name,
         const std::vector<at::Tensor>& arguments,
         int64_t written) { begin_launch(name, arguments, written); });
  m.def("end_launch(bool failed) -> ()", end_launch);
  // See Note [Kernels as operators].
  m.def(
      "define_kernel(str schema, int function, int warps, int shared, "
      "str types) -> ()",
      define_kernel);
  // See Note [Collectives].
  m.def("begin_group() -> ()", begin_group);
  m.def("end_group(Any work) -> ()", end_group);
  m.def("pause_adoption() -> ()", pause_adoption);
  m.def("resume_adoption() -> ()", resume_adoption);
}

} // namespace at::cuda::lms
