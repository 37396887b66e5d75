#include <ATen/cuda/detail/LMSHostDiskThreads.h>

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

namespace at::cuda::lms {
namespace {

// So many requests of so many bytes are in flight: with fewer or smaller ones
// fast disks do not reach their speed. The thread that waits works as well.
constexpr size_t kDiskThreads = 7;
constexpr size_t kDiskRequest = size_t{4} << 20; // bytes

// One transfer, and its requests that nobody has begun.
struct Batch {
  int file;
  bool is_write;
  std::vector<DiskRange> requests;
  size_t begun = 0;
  size_t ended = 0;
  int error = 0; // of the first that failed
};

// 0, or an errno.
int run_request(int file, bool is_write, DiskRange range) {
  while (range.host.bytes > 0) {
    const ssize_t done = is_write
        ? pwrite(file, range.host.begin, range.host.bytes, range.offset)
        : pread(file, range.host.begin, range.host.bytes, range.offset);
    if (done < 0 && errno != EINTR) {
      return errno;
    }
    if (done == 0) {
      return is_write ? ENOSPC : EIO; // a read past the end: nothing is there
    }
    const auto part = static_cast<size_t>(std::max<ssize_t>(done, 0));
    range.host = {range.host.begin + part, range.host.bytes - part};
    range.offset += static_cast<off_t>(part);
  }
  return 0;
}

// The threads that work on batches, for the whole process.
class DiskThreads {
 public:
  static DiskThreads& get() {
    static auto* threads = new DiskThreads(); // leaked, as the threads are
    return *threads;
  }

  int run(Batch& batch) {
    std::unique_lock<std::mutex> lock(mutex_);
    start();
    batches_.push_back(&batch);
    is_work_.notify_all();
    while (batch.begun < batch.requests.size()) {
      run_one(batch, lock);
    }
    is_done_.wait(
        lock, [&batch] { return batch.ended == batch.requests.size(); });
    return batch.error;
  }

 private:
  using Lock = std::unique_lock<std::mutex>;

  // With fewer threads than wanted, or none, it takes longer.
  void start() {
    try {
      while (count_ < kDiskThreads) {
        std::thread([this] { work(); }).detach();
        ++count_;
      }
    } catch (const std::system_error&) {
      return; // the next time
    }
  }

  [[noreturn]] void work() {
    (void)pthread_setname_np(pthread_self(), "lms-disk");
    Lock lock(mutex_);
    while (true) {
      is_work_.wait(lock, [this] { return !batches_.empty(); });
      run_one(*batches_.front(), lock);
    }
  }

  // Without the mutex while it runs.
  void run_one(Batch& batch, Lock& lock) {
    const DiskRange request = batch.requests[batch.begun++];
    if (batch.begun == batch.requests.size()) {
      batches_.erase(std::find(batches_.begin(), batches_.end(), &batch));
    }
    int error = batch.error; // after one has failed the others are left out
    if (error == 0) {
      lock.unlock();
      error = run_request(batch.file, batch.is_write, request);
      lock.lock();
    }
    batch.error = batch.error == 0 ? error : batch.error;
    if (++batch.ended == batch.requests.size()) {
      is_done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable is_work_;
  std::condition_variable is_done_;
  std::deque<Batch*> batches_; // that have requests left
  size_t count_ = 0; // threads
};

} // namespace

int transfer_bytes(
    int file,
    const std::vector<DiskRange>& ranges,
    bool is_write) {
  Batch batch{file, is_write, {}};
  for (DiskRange left : ranges) {
    while (left.host.bytes > 0) {
      const size_t part = std::min(left.host.bytes, kDiskRequest);
      batch.requests.push_back({{left.host.begin, part}, left.offset});
      left.host = {left.host.begin + part, left.host.bytes - part};
      left.offset += static_cast<off_t>(part);
    }
  }
  return batch.requests.empty() ? 0 : DiskThreads::get().run(batch);
}

} // namespace at::cuda::lms
