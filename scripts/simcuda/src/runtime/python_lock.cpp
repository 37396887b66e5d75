#include "python_lock.h"

#include <dlfcn.h>

namespace simcuda {

namespace {

// Python's functions, null in a process without it.
struct Python {
  int (*is_initialized)();
  int (*has_lock)();
  void* (*release)();
  void (*take)(void* thread);
};

template <typename Function>
void look_up(Function*& function, const char* name) {
  function = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

const Python& python() {
  static const Python found = [] {
    Python result{};
    look_up(result.is_initialized, "Py_IsInitialized");
    look_up(result.has_lock, "PyGILState_Check");
    look_up(result.release, "PyEval_SaveThread");
    look_up(result.take, "PyEval_RestoreThread");
    return result;
  }();
  return found;
}

}  // namespace

PythonReleased::PythonReleased() {
  const Python& calls = python();
  if (calls.is_initialized && calls.is_initialized() && calls.has_lock()) {
    thread_ = calls.release();
  }
}

PythonReleased::~PythonReleased() {
  if (thread_) {
    python().take(thread_);
  }
}

}  // namespace simcuda
