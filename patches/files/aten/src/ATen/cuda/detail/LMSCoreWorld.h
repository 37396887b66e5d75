#pragma once

#include <ATen/cuda/detail/LMSCoreDisk.h>
#include <ATen/cuda/detail/LMSHostMemory.h>
#include <ATen/cuda/detail/LMSCorePolicy.h>
#include <ATen/cuda/detail/LMSCoreStats.h>

#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <string>

namespace at::cuda::lms {

struct PageEntry;
class World;

// Device memory that somebody owns; to free it, it goes back where it came
// from.
struct FreeMemory {
  World* world = nullptr;
  void operator()(void* memory) const noexcept;
};
using DeviceMemory = std::unique_ptr<void, FreeMemory>;

// A copy of a page's bytes from where they are: to the device, to the host, or
// within the device.
struct Copy {
  enum class Kind { kIn, kOut, kMove };
  Kind kind;
  const PageEntry& page;
  void* memory = nullptr; // target of kIn and kMove
  const HostPieces* host = nullptr; // target of kOut; null: only overwrite
  Events after; // what the copy waits for
  // Of kIn: ahead of the bytes' use; before what is fetched for later uses.
  bool is_ahead = false;
  bool is_urgent = false;
};

// How a page's bytes leave the device.
enum class Departure {
  kCopied, // to the host, by the last copy of the page
  kClean, // the host, or the disk, has them already
  kDropped, // they are made again
};

// All that the pager asks of a device and of its host. The engine answers with
// CUDA and the caching allocator, the replay of a trace in virtual time, and
// both run the same pager. Called with the mutex of the pager, except where
// noted. Errors are exceptions.
class World {
 public:
  virtual ~World() = default;

  // --- the device's memory, without the mutex ---

  // Memory for the page, of its home stream if that has some. Whoever uses it
  // waits for what is added to `pending`. Makes room for it, and throws if
  // there can be none; but if `is_ahead`, of the page's use, it takes what is
  // free, and returns null if nothing is.
  virtual DeviceMemory allocate(
      const PageEntry& page,
      bool is_ahead,
      Events& pending) = 0;
  virtual void free(void* memory) noexcept = 0;
  // The allocator's rules: bytes of the block that serves a request, and bytes
  // that it would get from the driver for it. With or without the mutex.
  virtual size_t block_size_for(size_t bytes) const = 0;
  virtual size_t growth_for(size_t bytes) const = 0;

  // --- streams and events ---

  // Queues the copy and returns its end.
  virtual Event copy(const Copy& copy) = 0;
  // The page has left. `room`: bytes of memory that are wanted for something
  // else now; 0: nothing asks for it, it left by the plan.
  virtual void note_departure(
      const PageEntry& /*page*/,
      Departure /*how*/,
      size_t /*room*/) {}
  // The end of what is queued so far on the stream.
  virtual Events queued(Stream stream) noexcept = 0;
  // The handle may stand for another stream than it did.
  virtual bool may_be_another(Stream stream) const = 0;
  // Makes the stream wait. The time that it does counts as `counted`.
  virtual void wait(
      Stream stream,
      const Events& events,
      std::optional<Activity> counted) = 0;
  // Operator::clock tells when the stream has got here. Marks pass in order.
  virtual void mark(Stream /*stream*/, uint64_t /*mark*/) {}
  // With or without the mutex, as the next one.
  virtual bool has_happened(const Event& event) const = 0;
  // Waits on the host. False after an error, which later calls report.
  virtual bool wait_on_host(const Event& event) noexcept = 0;

  // --- bytes that can be made again, by running an operator again ---

  // How many times as long as making the page's bytes again a copy takes. 0 if
  // they cannot be made, or not in less time.
  virtual uint32_t gain(const PageEntry& /*page*/) {
    return 0;
  }
  // They go without a copy, if they can be made: whatever it costs, or if there
  // is a gain. Then the world keeps what it takes until they are made, by
  // Fetcher::begin_making and Residence::put_back, or the page dies. Such a
  // page is never fetched.
  virtual bool give_up(PageEntry& /*page*/, bool /*at_any_cost*/) {
    return false;
  }

  // --- the host's memory: see HostMemory ---

  virtual HostPieces allocate_on_host(
      size_t bytes,
      HostMemory::Claim claim,
      HostMemory::Wait& wait) = 0;
  virtual void free_on_host(HostPieces pieces, Event ready) = 0;
  // Without the mutex.
  virtual bool finish(HostMemory::Wait& wait) = 0;

  // --- a disk, if there is one: see Note [Below the host's memory] ---

  virtual bool has_disk() const {
    return false;
  }
  // Null if there is no room on it.
  virtual std::shared_ptr<DiskSpace> allocate_on_disk(size_t /*bytes*/) {
    return nullptr;
  }
  // Queues the transfer behind `after`, and sets its end.
  virtual void transfer(
      const std::shared_ptr<DiskTransfer>& /*transfer*/,
      const Event& /*after*/) {}

  // --- the rest ---

  // With or without the mutex, as the next one.
  virtual const Traits& traits() const = 0;
  // The host's lead is bounded where nothing is copied, too.
  virtual bool bounds_lead() const {
    return false;
  }
  // Of an error that one of these has thrown, for people.
  virtual std::string reason_of(const std::exception& error) const {
    return error.what();
  }
  // Something went wrong that only costs time. Without the mutex.
  virtual void warn(const char* what, const std::exception& error) noexcept = 0;
};

inline void FreeMemory::operator()(void* memory) const noexcept {
  world->free(memory);
}

} // namespace at::cuda::lms
