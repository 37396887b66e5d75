// Python's global lock, where the process has a Python.
#pragma once

namespace simcuda {

// Lets other threads have the lock, if this one has it, until it goes out of
// scope. Whoever waits for a stream must: kernels of Triton need the lock to
// run, and PyTorch keeps it in operators that it calls from its Python
// dispatcher.
class PythonReleased {
 public:
  PythonReleased();
  ~PythonReleased();
  PythonReleased(const PythonReleased&) = delete;
  PythonReleased& operator=(const PythonReleased&) = delete;

 private:
  void* thread_ = nullptr;  // Python's state of it, if it had the lock
};

}  // namespace simcuda
