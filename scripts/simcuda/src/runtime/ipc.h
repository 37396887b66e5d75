// What processes share: files without a name, which others open through the
// descriptor that their owner has.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace simcuda {

// How another process finds a file; what CUDA's handles hold.
struct SharedName {
  int process;
  int descriptor;
  int device;  // that the memory or the event is of
  uint64_t bytes;
};

class SharedFile {
 public:
  SharedFile(int device, size_t bytes);         // a new one, of zeros
  explicit SharedFile(const SharedName& name);  // another process's
  ~SharedFile();
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  // At an address, whose pages go, or anywhere if it is null. All functions
  // throw std::system_error.
  void* map(void* address = nullptr) const;
  void write(const void* from) const;

  const SharedName name;
};

// An event that several processes record and wait for.
class SharedEvent {
 public:
  explicit SharedEvent(int device);
  explicit SharedEvent(const SharedName& name);
  ~SharedEvent();
  SharedEvent(const SharedEvent&) = delete;
  SharedEvent& operator=(const SharedEvent&) = delete;

  const SharedName& name() const {
    return file_.name;
  }

  // Records are numbered from 1.
  uint64_t record() {
    return state_->recorded.fetch_add(1) + 1;
  }
  uint64_t recorded() const {
    return state_->recorded.load();
  }
  void reach(uint64_t record);
  void wait_for(uint64_t record) const;

 private:
  struct State {
    std::atomic<uint64_t> recorded;
    std::atomic<uint64_t> reached;
  };

  SharedFile file_;
  State* state_;
};

// Makes an allocation of this process's one that others can map. The first time
// it waits for the device, whose memory there it replaces: no other thread may
// queue work on it meanwhile.
SharedName share_device(void* address, size_t bytes, int device);
// To be called when an allocation goes that may have been shared.
void forget_shared(const void* address);

void* open_shared(const SharedName& name);
bool close_shared(void* address);

}  // namespace simcuda
