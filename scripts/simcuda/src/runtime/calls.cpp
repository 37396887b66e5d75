#include "calls.h"

#include <cuda_runtime_api.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <utility>
#include <vector>

#include "../simcuda.h"
#include "card.h"
#include "config.h"
#include "timing.h"

namespace simcuda {
namespace {

std::atomic<bool> is_forked{false};
std::atomic<cudaError_t> stuck{cudaSuccess};
thread_local cudaError_t last_error = cudaSuccess;

struct Functions {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<Function>> by_name;
};

Functions& functions() {
  static Functions* all = new Functions;
  return *all;
}

using Plan = std::map<std::string, std::vector<Fault>>;

// Sets `faults`; returns what is wrong with the plan, or "".
std::string parse(const std::string& plan, Plan& faults) {
  std::istringstream items(plan);
  for (std::string item; std::getline(items, item, ',');) {
    const size_t colon = item.find(':');
    Fault fault{0, false};
    if (colon != std::string::npos) {
      std::string number = item.substr(colon + 1);
      if (!number.empty() && number.back() == '-') {
        fault.onwards = true;
        number.pop_back();
      }
      const auto value = parse_size(number);
      fault.number = value ? *value : 0;
    }
    if (fault.number == 0) {
      return "fault '" + item + "' is not FUNCTION:N or FUNCTION:N- (N from 1)";
    }
    faults[item.substr(0, colon)].push_back(fault);
  }
  return "";
}

// Declares every function that a plan may name, with the error it then gives.
void declare() {
  for (const char* name : {"cudaMalloc", "cudaHostAlloc", "cudaMallocAsync",
                           "cuMemCreate", "cuMemAddressReserve"}) {
    function(name, cudaErrorMemoryAllocation);
  }
  for (const char* name :
       {"cudaStreamCreate", "cudaEventCreate", "cudaHostRegister"}) {
    function(name, cudaErrorMemoryAllocation);
  }
  for (const char* name :
       {"cudaFree", "cudaFreeHost", "cudaHostUnregister", "cudaMemcpy",
        "cudaMemcpyAsync", "cudaMemset", "cudaMemsetAsync", "cudaEventRecord",
        "cudaEventQuery", "cudaEventSynchronize", "cudaEventDestroy",
        "cudaStreamWaitEvent", "cudaStreamQuery", "cudaStreamSynchronize",
        "cudaStreamDestroy", "cudaDeviceSynchronize", "cudaLaunchHostFunc",
        "cudaMemGetInfo", "pread", "pwrite"}) {
    function(name, cudaErrorUnknown);
  }
}

void start() {
  pthread_atfork(nullptr, nullptr, [] { is_forked = true; });
  declare();
  const std::string wrong = set_faults(config().faults);
  if (!wrong.empty()) {
    std::fprintf(stderr, "simcuda: SIMCUDA_FAULTS: %s\n", wrong.c_str());
    std::fflush(stderr);
    _Exit(2);
  }
}

// Once, at the first CUDA call or the first question from Python.
void ensure_started() {
  static const bool started = (start(), true);
  (void)started;
}

size_t give(const std::string& text, char* out, size_t size) {
  if (size > 0) {
    const size_t n = std::min(size - 1, text.size());
    std::memcpy(out, text.data(), n);
    out[n] = '\0';
  }
  return text.size() + 1;
}

}  // namespace

Function::Function(const char* name_, cudaError_t fault_)
    : name(name_), fault(fault_), takes(timed() ? card().call(name_) : 0) {}

cudaError_t Function::count() {
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t number = ++calls_ - base_;
  for (const Fault& item : faults_) {
    if (number == item.number || (item.onwards && number > item.number)) {
      return fault;
    }
  }
  return cudaSuccess;
}

void Function::plan(std::vector<Fault> faults) {
  std::lock_guard<std::mutex> lock(mutex_);
  base_ = calls_;
  faults_ = std::move(faults);
}

uint64_t Function::calls() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return calls_;
}

Function& function(const char* name, cudaError_t fault) {
  Functions& all = functions();
  std::lock_guard<std::mutex> lock(all.mutex);
  auto& slot = all.by_name[name];
  if (!slot) {
    slot = std::make_unique<Function>(name, fault);
  }
  return *slot;
}

cudaError_t report(cudaError_t error) {
  if (error != cudaSuccess) {
    last_error = error;
  }
  return error;
}

void stick(cudaError_t error, const std::string& why) {
  cudaError_t none = cudaSuccess;
  if (stuck.compare_exchange_strong(none, error)) {
    std::fprintf(stderr, "simcuda: error on the device: %s\n", why.c_str());
    std::fflush(stderr);
  }
}

cudaError_t sticky() {
  return stuck.load();
}

bool forked() {
  return is_forked.load();
}

cudaError_t enter_thread(Function& function) {
  ensure_started();
  if (forked()) {
    return cudaErrorInitializationError;
  }
  if (function.takes > 0) {
    timing::spend(function.takes);
  }
  return function.count();
}

cudaError_t enter(Function& function) {
  if (timed() && !forked()) {
    timing::wait_for_driver();
  }
  const cudaError_t error = enter_thread(function);
  return error != cudaSuccess ? error : sticky();
}

cudaError_t not_simulated(const char* name) {
  static std::mutex mutex;
  static auto* said = new std::map<std::string, bool>;
  std::lock_guard<std::mutex> lock(mutex);
  if (!std::exchange((*said)[name], true)) {
    std::fprintf(stderr, "simcuda: %s is not simulated\n", name);
  }
  return report(cudaErrorNotSupported);
}

std::string set_faults(const std::string& plan) {
  Plan faults;
  std::string wrong = parse(plan, faults);
  if (!wrong.empty()) {
    return wrong;
  }
  Functions& all = functions();
  std::lock_guard<std::mutex> lock(all.mutex);
  for (const auto& [name, items] : faults) {
    if (all.by_name.count(name) == 0) {
      return "no simulated function '" + name + "' to fail";
    }
  }
  for (auto& [name, function] : all.by_name) {
    function->plan(faults[name]);
  }
  return "";
}

}  // namespace simcuda

using simcuda::ensure_started;
using simcuda::functions;
using simcuda::last_error;

extern "C" {

SIMCUDA_API cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error != cudaSuccess ? error : simcuda::sticky();
}

SIMCUDA_API cudaError_t cudaPeekAtLastError() {
  return last_error != cudaSuccess ? last_error : simcuda::sticky();
}

SIMCUDA_API size_t simcudaGetCalls(char* text, size_t size) {
  ensure_started();
  std::ostringstream out;
  std::lock_guard<std::mutex> lock(functions().mutex);
  for (const auto& [name, function] : functions().by_name) {
    out << name << ' ' << function->calls() << '\n';
  }
  return simcuda::give(out.str(), text, size);
}

SIMCUDA_API int simcudaSetFaults(const char* plan, char* error, size_t size) {
  ensure_started();
  const std::string wrong = simcuda::set_faults(plan);
  simcuda::give(wrong, error, size);
  return wrong.empty() ? 0 : -1;
}
}
