#pragma once

#include <ATen/cuda/detail/LMSCoreBooks.h>

#include <cstddef>
#include <optional>
#include <string>

namespace at::cuda::lms {

// What happens to a page: each function is one step from one of its states to
// another, with the copy and the books that go with it. Who takes the steps,
// and when, is decided elsewhere. Called with the mutex.
class Residence {
 public:
  explicit Residence(Books& books) : books_(books), world_(books.world) {}

  // --- its beginning and its end ---

  // The page's memory is managed from now on; it is resident.
  void begin(PageEntry* page, Block* block);
  // The same of a page without memory, whose bytes are on the host.
  void begin_on_host(PageEntry* page, HostPieces host);
  // Takes away the host's copy of a page that nobody uses any more. Empty if
  // its bytes are elsewhere. The copy is complete when `ready` has happened.
  HostPieces take_copy(PageEntry* page, Event& ready);
  // Its storage is gone, and its memory has been taken from it or freed; what
  // is left of it goes with its last pin.
  void end(PageEntry* page, Freed& freed);
  // Frees the memory of a resident page that dies, see Note [Handing memory
  // over]. Returns its address.
  void* free_while_used(PageEntry* page, Freed& freed);
  // The memory is no page's any more.
  DeviceMemory detach(PageEntry* page);

  // --- pins ---

  void add_pin(PageEntry* page);
  void drop_pin(PageEntry* page, Freed& freed) noexcept;
  // The pager's own, while it brings or moves the page. The calling thread
  // gives them back, as Contention is told.
  void add_own_pin(PageEntry* page);
  void drop_own_pin(PageEntry* page, Freed& freed) noexcept;

  // --- uses ---

  // Work on the stream is about to use the resident bytes.
  void note_access(PageEntry* page, bool writes, Stream stream);
  void note_use(PageEntry* page, Stream stream);
  // What work on the memory outside its home stream is queued so far.
  Events uses_of(const PageEntry& page);

  // --- to the host ---

  // Copies the bytes there while the page stays, so that to evict it takes no
  // copy. False if it cannot be now.
  bool save(PageEntry* page);
  // Leaves the bytes on the host; the memory drains. Null, with the page as it
  // was, if a wait is needed or the bytes cannot be evicted.
  // `room`: bytes that its memory is needed for, now; nullopt: it is not.
  Draining* page_out(
      PageEntry* page,
      HostMemory::Wait& wait,
      std::optional<size_t> room);
  // Gives up the memory, at once: that of a page, or memory that drains. False
  // if a wait is needed or the bytes cannot be evicted. `room`: as above.
  bool evict(Page* page, HostMemory::Wait& wait, size_t room, Freed& freed);
  // Of the last page-out that failed; empty if none has.
  const std::string& last_failure() const {
    return last_failure_;
  }

  // --- to the device, and within it: the page is kArriving ---

  // Its bytes come to the memory, once what is `pending` there has happened.
  void arrive(
      PageEntry* page,
      DeviceMemory& memory,
      bool is_ahead,
      const Events& pending,
      Freed& freed);
  // It stays on the host.
  void stay_away(PageEntry* page);
  // Its bytes have been made in the memory, by work that ends with `end` on the
  // stream.
  void put_back(
      PageEntry* page,
      DeviceMemory memory,
      Stream stream,
      Event end,
      Freed& freed);
  // They have not.
  void stay_dropped(PageEntry* page);
  void move(
      PageEntry* page,
      DeviceMemory& memory,
      const Events& pending,
      Freed& freed);
  // It stays where it is on the device.
  void stay(PageEntry* page, Freed& freed);

 private:
  void free_copies(PageEntry* page);
  void take_pin(PageEntry* page);
  void give_pin(PageEntry* page, Freed& freed) noexcept;
  void attach(PageEntry* page, DeviceMemory memory);
  void note_end_of_stay(const PageEntry& page);
  void end_dead_arrival(PageEntry* page, DeviceMemory memory, Freed& freed);
  Event copy_out(PageEntry* page, const HostPieces* host);
  void write_back(PageEntry* page, HostPieces host, Event end);
  void drop_clean(PageEntry* page);
  bool is_given_up(PageEntry* page, bool is_needed);
  Draining& leave(PageEntry* page, Events events, PageEntry::State state);

  Books& books_;
  World& world_;
  std::string last_failure_;
};

} // namespace at::cuda::lms
