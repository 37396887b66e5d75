#pragma once

#include <ATen/cuda/detail/LMSCompat.h>

#include <vector>

namespace at::cuda::lms {

class Device;

// Keeps a device's map of memory equal to the caching allocator's: by its trace
// events, which tell of each block and each segment that comes or goes.
class Mirror {
 public:
  explicit Mirror(Device& device) : device_(device) {}

  // Reads the allocator's present layout, and follows its events from then on.
  // The tracker cannot be detached again. Without the mutex.
  void start();
  // Called with the allocator's mutex held; takes LMS's own and no other.
  void on_event(const TraceEntry& entry);

 private:
  // With the mutex.
  void apply(const TraceEntry& entry);
  void note_allocation(const TraceEntry& entry);
  void note_free(const TraceEntry& entry);

  Device& device_;
  // Events that came while the layout was first being read.
  std::vector<TraceEntry> backlog_;
  bool is_mirrored_ = false;
};

} // namespace at::cuda::lms
