// A backend of torch.distributed for one process. Like NCCL it copies on a
// stream of its own, later, at the addresses that tensors have when it is
// asked.

#include <c10/core/Event.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/library.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using c10d::Work;

// Holds all copies back while it is closed.
class Gate {
 public:
  void close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_open_ = false;
  }
  void open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return is_open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = true;
};

Gate& gate() {
  static auto* instance = new Gate(); // copies may outlive everything
  return *instance;
}

struct Copy {
  void* target;
  const void* source;
  size_t bytes;
};

class CopyWork : public Work {
 public:
  void launch(
      const std::vector<Copy>& copies,
      c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool()) {
    c10::Event ready(c10::DeviceType::CUDA);
    ready.record(c10::cuda::getCurrentCUDAStream());
    ready.block(stream);
    C10_CUDA_CHECK(cudaLaunchHostFunc(
        stream,
        [](void*) {
          // Late enough for a missing wait to show.
          std::this_thread::sleep_for(std::chrono::milliseconds{50});
          gate().pass();
        },
        nullptr));
    for (const Copy& copy : copies) {
      C10_CUDA_CHECK(cudaMemcpyAsync(
          copy.target,
          copy.source,
          copy.bytes,
          cudaMemcpyDeviceToDevice,
          stream));
    }
    done_.record(stream);
  }

  bool wait(std::chrono::milliseconds /*timeout*/) override {
    done_.block(c10::cuda::getCurrentCUDAStream());
    return true;
  }

  void wait_on_host() const {
    done_.synchronize();
  }

 protected:
  c10::Event done_{c10::DeviceType::CUDA};
};

// By its name LMS takes it for NCCL's. Before the launch it has completed, too.
class ProcessGroupNCCLWork final : public CopyWork {
 public:
  bool isCompleted() override {
    return done_.query();
  }
};

// Has completed for the host when the copy is queued.
class QueuedWork final : public CopyWork {
 public:
  bool isCompleted() override {
    return true;
  }
};

// By its kind, a collective is "queued", has an "event", or has happened before
// anybody sees its Work ("quick"). A group has a Work that has an event, unless
// its last collective is "silent".
class CopyBackend final : public c10d::Backend {
 public:
  CopyBackend() : Backend(/*rank=*/0, /*size=*/1) {}

  c10::intrusive_ptr<Work> _allgather_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::AllgatherOptions& options) override {
    is_asynchronous_ = options.asyncOp;
    if (!options.asyncOp && groups_ == 0) {
      output.copy_(input);
      return {};
    }
    const Copy copy{
        output.mutable_data_ptr(), input.const_data_ptr(), input.nbytes()};
    const auto work = make_work();
    if (groups_ > 0) {
      grouped_.push_back(copy);
    } else {
      work->launch({copy});
    }
    if (kind == "quick") {
      work->wait_on_host();
    }
    c10::intrusive_ptr<Work> result;
    if (options.asyncOp) {
      result = work;
    }
    return result;
  }

  void startCoalescing() override {
    ++groups_;
  }

  c10::intrusive_ptr<Work> endCoalescing() override {
    const auto work = make_work();
    if (--groups_ == 0) {
      work->launch(
          std::exchange(grouped_, {}),
          is_asynchronous_ ? c10::cuda::getStreamFromPool()
                           : c10::cuda::getCurrentCUDAStream());
    }
    c10::intrusive_ptr<Work> result;
    if (kind != "silent") {
      result = work;
    }
    return result;
  }

  void wait() {
    for (const auto& work : std::exchange(works_, {})) {
      work->wait(std::chrono::milliseconds{0});
    }
  }

  std::string kind;

 private:
  c10::intrusive_ptr<CopyWork> make_work() {
    c10::intrusive_ptr<CopyWork> work;
    if (kind == "queued") {
      work = c10::make_intrusive<QueuedWork>();
    } else {
      work = c10::make_intrusive<ProcessGroupNCCLWork>();
    }
    works_.push_back(work);
    return work;
  }

  int groups_ = 0; // only the outermost is launched
  bool is_asynchronous_ = true; // the last collective
  std::vector<Copy> grouped_;
  std::vector<c10::intrusive_ptr<CopyWork>> works_;
};

CopyBackend& backend() {
  static auto instance = c10::make_intrusive<CopyBackend>();
  return *instance;
}

c10::intrusive_ptr<c10d::ProcessGroup> group() {
  static const auto instance = [] {
    using c10d::ProcessGroup;
    auto made = c10::make_intrusive<ProcessGroup>(/*rank=*/0, /*size=*/1);
    made->setBackend(
        c10::DeviceType::CUDA,
        ProcessGroup::BackendType::CUSTOM,
        c10::intrusive_ptr<c10d::Backend>::reclaim_copy(&backend()));
    return made;
  }();
  return instance;
}

void gather(
    at::Tensor output,
    at::Tensor input,
    const std::string& kind,
    bool asynchronous) {
  backend().kind = kind;
  c10d::AllgatherOptions options;
  options.asyncOp = asynchronous;
  group()->_allgather_base(output, input, options);
}

} // namespace

TORCH_LIBRARY(backend, m) {
  m.def(
      "gather(Tensor output, Tensor input, str kind, bool asynchronous=True)"
      " -> ()",
      gather);
  m.def("group() -> __torch__.torch.classes.c10d.ProcessGroup", group);
  m.def("wait() -> ()", [] { backend().wait(); });
  m.def("close_gate() -> ()", [] { gate().close(); });
  m.def("open_gate() -> ()", [] { gate().open(); });
}
