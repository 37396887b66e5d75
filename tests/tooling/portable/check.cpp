// Uses each function that build/portable.cpp defines, and what the engine uses
// of the standard library beside them; ends the process if one fails.
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <future>
#include <iostream>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <sstream>
#include <string>
#include <thread>

#define REQUIRE(condition)                                                     \
  if (!(condition)) {                                                          \
    std::fprintf(stderr, "line %d: %s does not hold\n", __LINE__, #condition); \
    std::exit(1);                                                              \
  }

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

int alive = 0;

struct Counted {
  Counted() {
    ++alive;
  }
  Counted(const Counted&) {
    ++alive;
  }
  ~Counted() {
    --alive;
  }
};

// Its destructor is called by address when the program ends.
std::exception_ptr kept;

void exceptions() {
  auto first = std::make_exception_ptr(Counted());
  REQUIRE(alive == 1);
  kept = first;
  first = nullptr;
  REQUIRE(alive == 1);
  std::thread([copy = kept] {
    try {
      std::rethrow_exception(copy);
    } catch (const Counted&) {
    }
  }).join();
  REQUIRE(alive == 1);
  kept = nullptr;
  REQUIRE(alive == 0);
  kept = std::make_exception_ptr(std::string("kept"));
}

void lengths() {
  auto length = std::numeric_limits<std::size_t>::max() / 2;
  try {
    std::allocator<long>().deallocate(
        std::allocator<long>().allocate(length), length);
    REQUIRE(false);
  } catch (const std::bad_array_new_length&) {
  }
}

void streams() {
  std::ostringstream out;
  out << "text " << 42 << ' ' << 0.5;
  REQUIRE(out.str() == "text 42 0.5");
#if __cplusplus >= 202002L
  std::string (std::stringbuf::*volatile call)() const& = &std::stringbuf::str;
  REQUIRE((out.rdbuf()->*call)() == "text 42 0.5");
#endif
  std::cout << out.str() << std::endl;
}

void futures() {
  std::promise<int> promise;
  auto future = promise.get_future();
  auto start = steady_clock::now();
  REQUIRE(future.wait_for(milliseconds(50)) == std::future_status::timeout);
  auto took = steady_clock::now() - start;
  REQUIRE(took >= milliseconds(45) && took < milliseconds(5000));
  REQUIRE(
      future.wait_until(start - milliseconds(1)) ==
      std::future_status::timeout);
  std::thread setter([&promise] {
    std::this_thread::sleep_for(milliseconds(20));
    promise.set_value(7);
  });
  REQUIRE(future.wait_for(milliseconds(20000)) == std::future_status::ready);
  REQUIRE(future.get() == 7);
  setter.join();
}

void locks() {
  std::mutex mutex;
  std::shared_mutex shared;
  std::condition_variable changed;
  std::once_flag once;
  bool is_ready = false;
  thread_local int local = 1;
  std::function<void()> work = [&] {
    std::shared_lock reading(shared);
    std::call_once(once, [] { local = 2; });
    std::lock_guard<std::mutex> lock(mutex);
    is_ready = local == 2;
    changed.notify_all();
  };
  std::thread worker(work);
  std::unique_lock<std::mutex> lock(mutex);
  REQUIRE(changed.wait_for(
      lock, milliseconds(20000), [&is_ready] { return is_ready; }));
  lock.unlock();
  worker.join();
  REQUIRE(local == 1);
}

} // namespace

extern "C" __attribute__((visibility("default"))) void check();
extern "C" void check() {
  exceptions();
  lengths();
  streams();
  futures();
  locks();
}
