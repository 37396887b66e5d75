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
#include <functional>
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

class CopyWork : public Work {
 public:
  void launch(void* target, const void* source, size_t bytes) {
    const auto stream = c10::cuda::getStreamFromPool();
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
    C10_CUDA_CHECK(cudaMemcpyAsync(
        target, source, bytes, cudaMemcpyDeviceToDevice, stream));
    done_.record(stream);
  }

  bool wait(std::chrono::milliseconds /*timeout*/) override {
    done_.block(c10::cuda::getCurrentCUDAStream());
    return true;
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

class CopyBackend final : public c10d::Backend {
 public:
  CopyBackend() : Backend(/*rank=*/0, /*size=*/1) {}

  c10::intrusive_ptr<Work> _allgather_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::AllgatherOptions& options) override {
    if (!options.asyncOp && kind != "group") {
      output.copy_(input);
      return {};
    }
    c10::intrusive_ptr<CopyWork> work;
    if (kind == "queued") {
      work = c10::make_intrusive<QueuedWork>();
    } else {
      work = c10::make_intrusive<ProcessGroupNCCLWork>();
    }
    const auto launch = [work,
                         target = output.mutable_data_ptr(),
                         source = input.const_data_ptr(),
                         bytes = input.nbytes()] {
      work->launch(target, source, bytes);
    };
    if (kind == "group") {
      grouped.emplace_back(launch);
    } else {
      launch();
    }
    works.push_back(work);
    c10::intrusive_ptr<Work> result;
    if (options.asyncOp) {
      result = work;
    }
    return result;
  }

  std::string kind;
  std::vector<std::function<void()>> grouped;
  std::vector<c10::intrusive_ptr<CopyWork>> works;
};

CopyBackend& backend() {
  static auto instance = c10::make_intrusive<CopyBackend>();
  return *instance;
}

c10d::ProcessGroup& group() {
  static auto instance = [] {
    using c10d::ProcessGroup;
    auto made = c10::make_intrusive<ProcessGroup>(/*rank=*/0, /*size=*/1);
    made->setBackend(
        c10::DeviceType::CUDA,
        ProcessGroup::BackendType::CUSTOM,
        c10::intrusive_ptr<c10d::Backend>::reclaim_copy(&backend()));
    return made;
  }();
  return *instance;
}

void gather(
    at::Tensor output,
    at::Tensor input,
    const std::string& kind,
    bool asynchronous) {
  backend().kind = kind;
  c10d::AllgatherOptions options;
  options.asyncOp = asynchronous;
  group()._allgather_base(output, input, options);
}

void end_group() {
  for (const auto& launch : std::exchange(backend().grouped, {})) {
    launch();
  }
}

void wait() {
  for (const auto& work : std::exchange(backend().works, {})) {
    work->wait(std::chrono::milliseconds{0});
  }
}

} // namespace

TORCH_LIBRARY(backend, m) {
  m.def(
      "gather(Tensor output, Tensor input, str kind, bool asynchronous=True)"
      " -> ()",
      gather);
  m.def("end_group() -> ()", end_group);
  m.def("wait() -> ()", wait);
  m.def("close_gate() -> ()", [] { gate().close(); });
  m.def("open_gate() -> ()", [] { gate().open(); });
}
