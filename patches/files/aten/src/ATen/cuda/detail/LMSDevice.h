#pragma once

#include <ATen/cuda/detail/LMSHandover.h>
#include <ATen/cuda/detail/LMSHostMemory.h>
#include <ATen/cuda/detail/LMSLead.h>
#include <ATen/cuda/detail/LMSLimit.h>
#include <ATen/cuda/detail/LMSPolicy.h>
#include <ATen/cuda/detail/LMSSpace.h>
#include <ATen/cuda/detail/LMSStats.h>
#include <ATen/cuda/detail/LMSStorage.h>
#include <ATen/cuda/detail/LMSStreams.h>
#include <ATen/cuda/detail/LMSTimes.h>
#include <ATen/cuda/detail/LMSTrace.h>
#include <ATen/cuda/detail/LMSCompat.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace at::cuda::lms {

// A storage that an operator is about to touch.
struct Access {
  c10::StorageImpl* storage;
  bool writes;
};
using Accesses = c10::SmallVector<Access, 8>;
// A pin on a storage, taken for an access.
struct Pin {
  ManagedStorage* record;
  bool writes;
};
using Pins = c10::SmallVector<Pin, 8>; // in the order of pinning

// For the memory that a copy of the storage takes.
inline Request request_for(const ManagedStorage& record) {
  return {
      block_size_for(record.bytes), reinterpret_cast<uintptr_t>(record.home)};
}

// Note [Lock order of Large Model Support]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// 1. the caching allocator's mutex of a device (upstream's)
// 2. the mutex of that device's lms::Device
// 3. the mutex of the Trace
// 4. the mutex of HostMemory, and those of the event pools
// 5. the lock of the file of HostLedger, which processes share
// A thread takes them in this order only. (LMSBackward's is taken before 2, and
// never with 1.) So nothing that may allocate or free device memory runs under
// 2 to 5: memory to be freed is collected in `Freed` and let go after 2 is
// released. No mutex of LMS is held while the GIL is
// taken: reference counts of storages, whose changes may take the GIL, are not
// touched under 2, and the allocator, whose stack recorder may take it, is not
// called. No thread holds the mutexes of two devices. `Device::Lock` checks
// the order in every build. The threads that make slabs of host memory take
// none of these; who waits for one of them has given 4 back. What is queued on
// the device may wait for what another thread is about to launch, so whoever
// waits for the device has given back all that such a thread may need.

// All that LMS knows and does on one device. The methods are thread safe.
class Device {
 public:
  // The device's engine; made on first use, when CUDA is initialised.
  static Device& get(c10::DeviceIndex index);
  // As above, null if there is none yet. Takes no lock.
  static Device* find(c10::DeviceIndex index);
  static std::vector<Device*> all();

  c10::DeviceIndex index() const {
    return index_;
  }

  // --- storages and operators ---

  // Pins the storages, adopting those not managed yet if `adopt`, and pages in
  // what is not resident; later work on `stream` sees the bytes. If it throws
  // no pin is left behind; c10::OutOfMemoryError when there is no room.
  Pins pin(const Accesses& accesses, cudaStream_t stream, bool adopt);
  // Gives the pins back.
  void unpin(const Pins& pins) noexcept;
  // The same in two steps, for pins that outlive the operator: the thread that
  // took them lets go of them, and later any thread gives them back.
  void disown(const Pins& pins) const;
  void unpin_disowned(const Pins& pins) noexcept;
  // The operator of that name is launched: gives its pins back, starts to
  // manage its results, which work on `stream` has written, and does what the
  // policy wants done next. `span`: of the operator if it is being recorded.
  void finish_operator(
      const Pins& pins,
      const Accesses& results,
      cudaStream_t stream,
      uint64_t name,
      const Trace::Span& span) noexcept;
  // Starts to manage a storage that exists.
  void adopt_existing(c10::StorageImpl* storage);

  // Pins for the rest of the storage's life and waits on the host, so that
  // the bytes are valid on any stream.
  void hold(ManagedStorage* storage);
  // See Note [Addresses to compare].
  uintptr_t identity(ManagedStorage* storage);
  // Stops managing: the StorageImpl gets its native DataPtr back. The caller
  // holds a reference to it.
  void release(c10::StorageImpl* storage);
  // Called by the DataPtr's deleter.
  void forget(ManagedStorage* storage) noexcept;
  void record_stream(ManagedStorage* storage, c10::cuda::CUDAStream stream);
  bool is_resident(ManagedStorage* storage);
  // See Note [Gradients that cross streams].
  void let_cross(c10::StorageImpl* storage);
  void check_gradients_again();
  // Whether reads are checked has changed.
  void check_access_again();

  // --- reclaiming ---

  enum class Scope { kWindow, kSegments, kAll };
  struct Reclaimed {
    size_t count = 0; // storages, and memory that was draining
    size_t bytes = 0; // that are free now
  };
  // Pages out so that a request can be served. Never throws, since it is called
  // from inside the allocator: a storage whose copy fails stays resident, and
  // the request ends in an out-of-memory error that gives the reason. Only who
  // holds no mutex may wait for host memory.
  Reclaimed reclaim(const Request& wanted, Scope scope, bool may_wait) noexcept;
  // Whether something has to be reclaimed to serve the request.
  bool is_room_needed(const Request& request);
  // Joins free ranges so that the request can be served, if other storages can
  // be moved aside for that. See Note [Moving storages aside].
  void make_gap(const Request& wanted) noexcept;
  // True if no new segment may be taken to serve the request.
  bool must_reclaim(size_t bytes);
  // See Note [Lending memory to other streams].
  cudaStream_t lender_for(size_t bytes, cudaStream_t stream);
  std::vector<cudaStream_t> other_streams(cudaStream_t stream);
  void lend(
      const void* memory,
      cudaStream_t lender,
      cudaStream_t borrower,
      Handover::Events& pending);
  // Work on the stream is about to use memory that was allocated.
  void wait_for_memory(cudaStream_t stream, const Handover::Events& pending);
  // Memory that was allocated goes back unused: whoever gets it next has to
  // wait for `pending` in its place.
  void return_pending(
      const void* memory,
      const Handover::Events& pending) noexcept;
  // Allocations are about to go to a private pool. While they do, the native
  // allocator gives no cached segment back, so it is done before if there is no
  // room for another one.
  void make_room_for_pool();
  enum class Gather {
    kRoomy, // leaves as much for small storages as programs usually need
    kTight, // leaves 1/64 of the limit for them
  };
  // Pages out everything evictable and makes one free piece of the memory
  // in which work on the stream gets its results. See Note [Gathering an
  // operator's storages].
  void gather(cudaStream_t stream, Gather how);
  // Frees, once the device is idle, what external streams may still use.
  void free_memory_in_doubt();
  // Waits on the host until no copy reads from device memory that LMS gave up,
  // so that the memory can go back to the driver.
  void settle();

  // Counts the times that memory or pins were given back.
  uint64_t generation() const {
    return generation_.load();
  }
  // Waits on the host until the generation is no longer `seen`, because other
  // threads' operators hold what an allocation needs. False if no other thread
  // is about to give anything back: all that hold pins are waiting here too.
  // Or if `give_up` has come, which the first wait of a request sets.
  using GiveUp = std::optional<std::chrono::steady_clock::time_point>;
  bool wait_for_others(uint64_t seen, GiveUp& give_up);

  // --- settings and reports ---

  // Stops managing every storage. Throws c10::OutOfMemoryError, with LMS still
  // on, if they do not fit.
  void bring_all_back();
  // Bytes the caching allocator may reserve; 0: the default. What it has beyond
  // that is paged out and given back to the driver.
  void set_limit(size_t bytes);
  void remove_limit(); // when LMS is turned off
  // Tells the allocator of a limit that has changed by itself. False if it has
  // not. See Note [The limit follows the card].
  bool enforce_limit();
  size_t limit();
  // Bytes that operators' storages can take together: the limit less what
  // cannot be evicted, in large steps, so that list operators are seldom cut
  // otherwise than in the iteration before.
  size_t room_for_operators();
  // Bytes that one allocation can get once everything evictable is evicted.
  // What is resident makes no difference to it.
  size_t room_for_one();
  // Bytes that small storages can take on the device together.
  size_t room_for_small();
  size_t requested_limit(); // as given to set_limit
  // Of torch.cuda.set_per_process_memory_fraction; the smaller limit counts.
  void set_user_fraction(double fraction);
  double user_fraction();
  DeviceStats stats();
  void reset_peak_stats();
  void count(AllocSource source);
  // What is pinned, reclaimable and on the host, and what to change.
  std::string describe_memory();
  void on_trace(const TraceEntry& entry);

 private:
  class Lock;
  struct Freed;
  // Device memory that its storage does not need any more. It is kept until
  // `events` have happened or somebody needs it: a policy sees a page that can
  // be evicted for nothing.
  struct Draining final : Page {
    c10::DataPtr memory;
    Block* block = nullptr; // null: unknown to the layout
    Handover::Events events; // of the work that reads from it
    std::list<Draining>::iterator self; // in draining_
  };

  // Pages to evict, where host memory may have to be waited for.
  struct Eviction {
    explicit Eviction(bool may_wait) : wait(may_wait) {}
    void add(const std::vector<Page*>& victims);

    std::vector<std::pair<Page*, uint64_t>> pages; // still to go; their ids
    HostMemory::Wait wait; // for the first of them
    bool keeps_memory = false; // in draining_, until somebody needs it
    bool has_failed = false; // for some of them
    Reclaimed gone;
  };

  explicit Device(c10::DeviceIndex index);

  // The rest is called with the mutex held, except where noted.

  // Without the mutex.
  Pins try_pin(const Accesses& accesses, cudaStream_t stream, bool adopt);
  bool others_hold_pins(); // without the mutex
  bool pin_for_good(
      ManagedStorage* storage,
      Event& arrival); // without the mutex
  Event arrival_of(const ManagedStorage* storage); // without the mutex
  void take_pin(ManagedStorage* storage, bool writes, Pins& pins);
  void give_back(const Pins& pins, Freed& freed) noexcept;
  ManagedStorage* manage(
      c10::StorageImpl* result,
      cudaStream_t stream,
      bool may_cross);
  Pins obey(const Actions& actions, Eviction& eviction, Freed& freed);
  void finish_plan( // without the mutex
      Draft& draft,
      Eviction& eviction,
      Freed& freed,
      Pins& ahead);
  ManagedStorage* adopt(
      c10::StorageImpl* storage,
      std::optional<cudaStream_t> stream = std::nullopt);
  void let_cross(ManagedStorage* storage);
  void add_pin(ManagedStorage* storage);
  void drop_pin(ManagedStorage* storage, Freed& freed) noexcept;
  void note_change() noexcept; // with or without the mutex
  void note_access(const Pin& pin, cudaStream_t stream);
  void note_use(ManagedStorage* storage, cudaStream_t stream);
  void note_holder(ManagedStorage* storage);
  bool may_have_unseen_users(const ManagedStorage& storage) const;
  void note_end_of_stay(const ManagedStorage& storage);
  void wait_timed(
      cudaStream_t stream,
      const Handover::Events& events,
      Activity activity);
  void update_page(ManagedStorage* storage);
  Trace* trace() const noexcept; // that records this device, else null
  void remove(ManagedStorage* storage, Freed& freed) noexcept;

  void attach_memory(ManagedStorage* storage, c10::DataPtr memory);
  c10::DataPtr detach_memory(ManagedStorage* storage);
  Handover::Events uses_of(const ManagedStorage* storage);
  bool page_out(ManagedStorage* storage, HostMemory::Wait& wait);
  Event copy_out(ManagedStorage* storage, const HostPieces& host);
  HostPieces host_memory(size_t bytes, HostMemory::Wait& wait);
  void free_host_copy(ManagedStorage* storage);
  // The bytes are about to be written, or host memory is short.
  void drop_host_copy(ManagedStorage* storage);
  void occupy(Block* block, Page* page);
  void hand_over(Draining& draining, Freed& freed);
  void free_after(Event copied, c10::DataPtr memory, Freed& freed);
  void free_while_used(ManagedStorage* storage, Freed& freed);
  void take_over_loan(ManagedStorage* storage);
  void note_free(uintptr_t address);
  void note_home(ManagedStorage* storage, const void* memory);
  bool evict(Page* page, HostMemory::Wait& wait, Freed& freed);
  void evict(Eviction& eviction, Freed& freed);
  void finish(Eviction& eviction); // without the mutex
  bool is_crowded(const Request& request) const;
  bool has_room_for(const ManagedStorage& storage); // without the mutex
  bool may_grow(size_t bytes) const;
  bool may_reserve(size_t bytes) const; // from the driver
  void shrink(const Request& wanted, Scope scope); // without the mutex
  void release_drained_memory(Freed& freed);
  void move_out_of(
      const Clearing& clearing,
      const Pins& moving,
      const Extent& kept); // without the mutex
  void move(
      ManagedStorage* storage,
      c10::DataPtr memory,
      Handover::Events pending); // without the mutex
  void settle_in_place(const Pins& moving) noexcept;
  void note_arrivals();
  void note_write_backs();
  Event end_to_wait_for(cudaStream_t stream) noexcept;
  void note_progress(Request& request);
  std::optional<cudaStream_t> stream_to_consolidate(); // without the mutex
  void consolidate(cudaStream_t stream) noexcept; // without the mutex
  void take_one_segment(cudaStream_t stream); // without the mutex
  void take_tight_segment(cudaStream_t stream); // without the mutex
  bool has_expandable_segments(); // without the mutex
  size_t size_of_one_segment(size_t small); // without the mutex
  void note_one_segment(size_t bytes, size_t small); // without the mutex
  void note_lost_segment(uintptr_t address);
  void forget_one_segment();
  std::vector<Page*> all_evictable();
  void page_in(ManagedStorage* storage); // without the mutex
  bool page_in_ahead(ManagedStorage* storage); // without the mutex
  bool choose_ahead(ManagedStorage* storage, Eviction& eviction);
  void complete_page_in(ManagedStorage* storage, bool is_ahead); // without it
  void fetch_ahead(const Pins& ahead) noexcept; // without the mutex
  Event copy_into(
      void* memory,
      const ManagedStorage* storage,
      const Handover::Events& events,
      Activity activity);
  void end_dead_arrival(
      ManagedStorage* storage,
      c10::DataPtr memory,
      Freed& freed);

  void mirror_allocator(); // without the mutex
  void apply(const TraceEntry& entry);
  void take_over(const TraceEntry& entry);
  void apply_limit(size_t bytes); // without the mutex
  void adopt_limit();
  void look_at_card() noexcept; // without the mutex
  void look_at_card_before_growth(size_t bytes); // without the mutex
  void note_failure(const TraceEntry& entry);
  void obey_limit() noexcept; // without the mutex
  size_t stuck_bytes() const;
  size_t excess(); // without the mutex
  void give_excess_back(); // without the mutex

  const c10::DeviceIndex index_;
  std::mutex mutex_;
  std::condition_variable arrived_; // a storage is kArriving no more

  std::condition_variable changed_; // the generation or the waiters did
  std::atomic<uint64_t> generation_{0};
  std::atomic<int> letting_go_{0}; // threads with a Freed that is not empty
  std::atomic<int> waiters_{0}; // threads in wait_for_others
  int64_t operator_pins_ = 0; // pins taken by `pin`
  int64_t waiting_pins_ = 0; // the part that belongs to waiting threads

  std::vector<ManagedStorage*> records_;
  uint64_t last_id_ = 0; // of a record's page
  std::list<Draining> draining_; // oldest first
  struct WriteBack {
    Event event; // its end
    uint64_t drained_at; // see Page
  };
  std::deque<WriteBack> write_backs_; // not known to have ended, oldest first
  std::deque<Event> copies_in_; // the same
  Lead<Event> lead_;
  uint64_t arrived_pages_ = 0; // page-ins known to have ended
  uint64_t awaited_write_back_ = 0; // the latest that page-ins wait for
  uint64_t sent_bytes_ = 0; // to the host, ever
  uint64_t drained_bytes_ = 0; // of these, as far as note_progress has seen
  uintptr_t clearing_hand_ = 0; // see Note [Bounded search]
  Streams streams_;
  // Of dead storages. See Note [External streams].
  std::vector<c10::DataPtr> in_doubt_;
  std::atomic<bool> is_any_in_doubt_{false};
  Handover handover_;
  std::map<uintptr_t, cudaStream_t> loans_; // borrowers, by address
  size_t crossing_ = 0; // records that may cross streams
  Layout layout_;
  const Traits traits_;
  std::unique_ptr<Policy> policy_;
  Operator operator_; // scratch
  Actions actions_; // scratch
  size_t page_bytes_ = 0; // of blocks that have a page
  size_t peak_unmanaged_ = 0; // bytes of the others, since the last operator
  // Trace events that came while the layout was first being read.
  std::vector<TraceEntry> backlog_;
  bool mirrored_ = false;
  std::atomic<bool> has_evicted_{false}; // storages were evicted to make room
  // Since it was last seen whether there can be one segment.
  std::atomic<bool> is_consolidation_due_{false};
  bool is_consolidated_ = false; // see Note [One segment]
  uintptr_t one_segment_ = 0; // its address; 0: there is none
  size_t room_for_small_ = 0; // bytes, if it is
  int lost_to_requests_ = 0; // how often, under this limit

  cudaStream_t in_stream_ = nullptr; // page-in copies, in order
  cudaStream_t move_stream_ = nullptr; // copies within the device, in order
  cudaStream_t out_stream_ = nullptr; // page-out copies, in order
  std::string last_failure_; // of a page-out, for describe_memory

  Limit limit_rule_;
  size_t limit_ = 0; // bytes the caching allocator may reserve, by the rule
  size_t requested_limit_ = 0; // 0: the default
  std::atomic<bool> is_limit_new_{false}; // to the allocator
  // More may be reserved than the limit since it changed.
  std::atomic<bool> is_limit_to_obey_{false};
  bool is_limited_ = false; // the limit is in force: LMS is on
  double user_fraction_ = 1.0;
  DeviceStats stats_;
  Times times_;
  // Allocations by source; apart from stats_ to be counted without the mutex.
  std::array<std::atomic<int64_t>, static_cast<size_t>(AllocSource::kCount)>
      sources_{};
};

} // namespace at::cuda::lms
