#pragma once

#include <ATen/cuda/detail/LMSCoreDisk.h>
#include <ATen/cuda/detail/LMSCoreWorld.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace at::cuda::lms {

struct Value; // see LMSCoreValues.h

// What the pager knows of a page: where its bytes are, and who uses them.
struct PageEntry : Page {
  enum class State {
    kResident, // `memory` holds the bytes
    kPagedOut, // `host` or `disk` holds the bytes
    kDropped, // nobody does: the world makes them again
    kArriving, // one thread is paging in, making or moving it; others wait
  };

  explicit PageEntry(Stream home) : home(home) {}
  PageEntry(const PageEntry&) = delete;
  PageEntry& operator=(const PageEntry&) = delete;
  virtual ~PageEntry() = default;

  size_t index = 0; // in the page table
  State state = State::kResident;
  // Both null while the bytes are not on the device.
  DeviceMemory memory;
  Block* block = nullptr; // in the map of memory
  // Empty unless it holds the bytes. Kept when they are paged in, until they
  // are written or host memory runs short.
  HostPieces host;
  // Null unless it holds the bytes: until they are written. See Note [Below the
  // host's memory].
  std::shared_ptr<DiskSpace> disk;
  // Between the two, under way; or the last one, a read that has failed.
  std::shared_ptr<DiskTransfer> transfer;

  // The stream whose memory it has, or had when it was evicted. A page-in
  // allocates there again, so that freeing it means what it means without LMS.
  Stream home;
  // Whether work is queued on the bytes since they became resident: on the home
  // stream, and on which others. Each has waited for their arrival.
  bool is_used_at_home = true;
  std::vector<Stream> other_users;

  Event arrival; // the copy that brought the bytes is done
  // What a stream's time counts as that waits for it.
  Activity waits_for = Activity::kWaitForDemand;
  // The last copy of the bytes to the host is done; null if they have come back
  // since.
  Event write_back;
  // Bytes sent to the host when the page-out was; tells page-outs apart.
  uint64_t written_back_at = 0;

  uint32_t pins = 0;
  uint32_t own_pins = 0; // of these, the pager's, which need no address
  // The world has made its bytes and nobody has used them: they are not dropped
  // again before.
  bool is_newly_made = false;
  bool was_given_up = false; // when it was evicted last
  bool dead = false; // its storage is gone; the last pin frees the entry

  bool is_watched = true; // all that is written to it is seen
  std::shared_ptr<Value> value; // what its bytes are; null: nothing is known
  // What they were before the operator that wrote to it last.
  std::shared_ptr<Value> overwritten;
  // What it is made from while it is dropped, else empty. See Note [What
  // dropped pages are made from].
  std::vector<std::shared_ptr<Value>> sources;

  // The address becomes visible with the first pin that needs it, and after the
  // last one it is not any more.
  virtual void show_address() {}
  virtual void hide_address() {}
  // The last pin of a dead page is given back.
  virtual void end() {}
  // Its bytes come to another stream's memory than the last.
  virtual void set_home(Stream stream) {
    home = stream;
  }

  bool is_used_on(Stream stream) const {
    return stream == home
        ? is_used_at_home
        : std::find(other_users.begin(), other_users.end(), stream) !=
            other_users.end();
  }
  bool is_used() const {
    return is_used_at_home || !other_users.empty();
  }
  void add_user(Stream stream);
  void clear_users();

  // It can be copied to the device.
  bool is_on_host() const {
    return state == State::kPagedOut && !host.empty();
  }
  // The program sees the address.
  bool is_shown() const {
    return pins > own_pins && state == State::kResident;
  }
  Pool pool() const {
    return bytes <= kSmallSize ? kSmallPool : kLargePool;
  }
  // Tells policies (`resident`, `evictable`, `clean`) what has changed.
  void update();
};

// The page of a policy, which is not draining memory.
inline PageEntry* entry(Page* page) {
  return static_cast<PageEntry*>(page);
}

// For the memory that the page's bytes take.
Request request_for(const PageEntry& page, const World& world);

// The pages of a device. They belong to their storages.
class PageTable {
 public:
  explicit PageTable(DeviceStats& stats) : stats_(stats) {}

  // Numbers it: no other page ever has its id.
  void add(PageEntry* page);
  void remove(PageEntry* page);
  // In no order that means anything.
  const std::vector<PageEntry*>& all() const {
    return pages_;
  }

 private:
  DeviceStats& stats_;
  std::vector<PageEntry*> pages_;
  uint64_t last_id_ = 0;
};

} // namespace at::cuda::lms
