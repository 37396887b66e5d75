#include "mutexes.h"

#include <dlfcn.h>
#include <pthread.h>

#include "../simcuda.h"

namespace simcuda {
namespace {

__attribute__((tls_model("initial-exec"))) thread_local int held = 0;

using Function = int (*)(pthread_mutex_t*);

Function real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

int mutexes_held() {
  return held;
}

}  // namespace simcuda

extern "C" {

SIMCUDA_API int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static const auto lock = simcuda::real("pthread_mutex_lock");
  const int error = lock(mutex);
  simcuda::held += error == 0 ? 1 : 0;
  return error;
}

SIMCUDA_API int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  static const auto lock = simcuda::real("pthread_mutex_trylock");
  const int error = lock(mutex);
  simcuda::held += error == 0 ? 1 : 0;
  return error;
}

SIMCUDA_API int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  static const auto unlock = simcuda::real("pthread_mutex_unlock");
  const int error = unlock(mutex);
  simcuda::held -= error == 0 ? 1 : 0;
  return error;
}
}
