// Threads that the program starts, in timed mode: their clocks begin with the
// starter's.
#include <dlfcn.h>
#include <pthread.h>

#include <memory>

#include "../simcuda.h"
#include "config.h"
#include "timing.h"

using namespace simcuda;

namespace {

struct Start {
  void* (*function)(void*);
  void* argument;
  Time time;
};

void* run(void* given) {
  const std::unique_ptr<Start> start(static_cast<Start*>(given));
  timing::begin_thread(start->time);
  void* result = start->function(start->argument);
  timing::end_thread();
  return result;
}

}  // namespace

extern "C" SIMCUDA_API int pthread_create(pthread_t* thread,
                                          const pthread_attr_t* attributes,
                                          void* (*function)(void*),
                                          void* argument) noexcept {
  static const auto real = reinterpret_cast<decltype(&pthread_create)>(
      dlsym(RTLD_NEXT, "pthread_create"));
  if (!timed()) {
    return real(thread, attributes, function, argument);
  }
  auto start =
      std::make_unique<Start>(Start{function, argument, timing::now()});
  const int error = real(thread, attributes, run, start.get());
  if (error == 0) {
    (void)start.release();  // the thread's
  }
  return error;
}
