#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

namespace at::cuda::lms {

// Note [Out-of-memory errors that count]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// The native allocator counts each request that it refuses (num_ooms) and
// tells the observers of out-of-memory errors. LMS mostly makes room then and
// asks again, so the program never hears of it. The refusals inside of a
// RetryScope are therefore taken off the count and kept from observers. When
// the error leaves the last such scope, it is on its way to the program:
// report_error counts it and tells the observers.
//
// Observers that were attached before LMS was first turned on are the native
// allocator's own, and hear of all refusals.

using OutOfMemoryObserver =
    c10::cuda::CUDACachingAllocator::OutOfMemoryObserver;

// While one lives, the calling thread can do without the memory that it asks
// for, or asks for it again.
class RetryScope {
 public:
  RetryScope();
  RetryScope(const RetryScope&) = delete;
  RetryScope& operator=(const RetryScope&) = delete;
  ~RetryScope();
};

// Note [Memory in pieces]
// ~~~~~~~~~~~~~~~~~~~~~~~
// Kernels may do with less memory: cuDNN takes another algorithm if it gets no
// workspace for the best one, slower and with other bits. So an operator that
// may run again gets no out-of-memory error where there is enough memory, but
// in pieces. It gets an error that no kernel knows and catches; when its
// storages lie side by side it runs again, and gets the memory. An operator
// that runs to make bytes again gets this error wherever there is no memory:
// other bits are of no use.
class Uncatchable final : public std::exception {
 public:
  explicit Uncatchable(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override {
    return message_.c_str();
  }

 private:
  std::string message_;
};

// The shortages of which kernels are told by an Uncatchable.
enum class Uncaught { kNone, kInPieces, kAll };

// While one lives, those of the calling thread.
class UncaughtScope {
 public:
  explicit UncaughtScope(Uncaught shortages);
  UncaughtScope(const UncaughtScope&) = delete;
  UncaughtScope& operator=(const UncaughtScope&) = delete;
  ~UncaughtScope();

 private:
  const Uncaught outer_;
};
Uncaught uncaught_shortages();

// The calling thread gives up the request that was refused last: the error
// counts, unless a scope that it is inside of may yet retry.
void give_up_request();

// An out-of-memory error leaves the scope that ended last. Nothing happens if a
// scope around it may retry, or if the error is not of a request to LMS.
void report_error();

// Refusals on a device so far that do not count.
int64_t uncounted_errors(c10::DeviceIndex device);
void forget_uncounted_errors(c10::DeviceIndex device);

// Begins to follow the native allocator's refusals, once it has devices. At
// most once, before the first RetryScope.
void watch_refusals(c10::cuda::CUDACachingAllocator::CUDAAllocator& native);
void add_observer(
    c10::cuda::CUDACachingAllocator::CUDAAllocator& native,
    OutOfMemoryObserver observer);

} // namespace at::cuda::lms
