#include "ipc.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>

#include "memory.h"
#include "stream.h"

namespace simcuda {
namespace {

constexpr size_t kPage = 4096;  // bytes
constexpr auto kPoll = std::chrono::microseconds(50);

struct Shared {
  std::mutex mutex;
  std::map<const void*, std::unique_ptr<SharedFile>> exported;
  std::map<const void*, size_t> opened;  // bytes
};

Shared& shared() {
  static Shared* all = new Shared;
  return *all;
}

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

SharedName fresh(int device, size_t bytes) {
  const int file = memfd_create("simcuda", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    fail("memory to share");
  }
  return {getpid(), file, device, bytes};
}

SharedName opened(const SharedName& name) {
  const std::string path = "/proc/" + std::to_string(name.process) + "/fd/" +
                           std::to_string(name.descriptor);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) {
    fail("shared memory");
  }
  return {getpid(), file, name.device, name.bytes};
}

}  // namespace

SharedFile::SharedFile(int device, size_t bytes) : name(fresh(device, bytes)) {}

SharedFile::SharedFile(const SharedName& other) : name(opened(other)) {}

SharedFile::~SharedFile() {
  close(name.descriptor);
}

void* SharedFile::map(void* address) const {
  const int place = address == nullptr ? 0 : MAP_FIXED;
  void* mapped = mmap(address, name.bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | place, name.descriptor, 0);
  if (mapped == MAP_FAILED) {
    fail("address space for shared memory");
  }
  return mapped;
}

void SharedFile::write(const void* from) const {
  const char* bytes = static_cast<const char*>(from);
  for (uint64_t done = 0; done < name.bytes;) {
    const ssize_t written = pwrite(name.descriptor, bytes + done,
                                   name.bytes - done, static_cast<off_t>(done));
    if (written < 0) {
      fail("memory to share");
    }
    done += static_cast<uint64_t>(written);
  }
}

SharedEvent::SharedEvent(int device)
    : file_(device, kPage), state_(static_cast<State*>(file_.map())) {}

SharedEvent::SharedEvent(const SharedName& name)
    : file_(name), state_(static_cast<State*>(file_.map())) {}

SharedEvent::~SharedEvent() {
  munmap(state_, kPage);
}

void SharedEvent::reach(uint64_t record) {
  uint64_t before = state_->reached.load();
  while (before < record &&
         !state_->reached.compare_exchange_weak(before, record)) {
  }
}

void SharedEvent::wait_for(uint64_t record) const {
  while (state_->reached.load() < record) {
    std::this_thread::sleep_for(kPoll);
  }
}

SharedName share_device(void* address, size_t bytes, int device) {
  Shared& all = shared();
  std::lock_guard<std::mutex> lock(all.mutex);
  auto& file = all.exported[address];
  if (!file) {
    synchronize(device);
    auto made = std::make_unique<SharedFile>(device, bytes);
    made->write(address);
    made->map(address);
    file = std::move(made);
  }
  return file->name;
}

void forget_shared(const void* address) {
  Shared& all = shared();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.exported.erase(address);
}

void* open_shared(const SharedName& name) {
  void* address = SharedFile(name).map();
  add_mapped(name.device, address, name.bytes);
  Shared& all = shared();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.opened[address] = name.bytes;
  return address;
}

bool close_shared(void* address) {
  Shared& all = shared();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.opened.find(address);
  if (found == all.opened.end()) {
    return false;
  }
  remove_mapped(address);
  munmap(address, found->second);
  all.opened.erase(found);
  return true;
}

}  // namespace simcuda
