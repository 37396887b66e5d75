#pragma once

#include <ATen/cuda/detail/LMSCoreBooks.h>
#include <ATen/cuda/detail/LMSCoreFetch.h>
#include <ATen/cuda/detail/LMSCoreReclaim.h>
#include <ATen/cuda/detail/LMSCoreRelocation.h>
#include <ATen/cuda/detail/LMSCoreResidence.h>

#include <condition_variable>
#include <memory>
#include <string>
#include <vector>

namespace at::cuda::lms {

// Pages the storages of one device between it and its host. It knows neither
// PyTorch nor CUDA, but a World. Its parts, each in a header of its own:
//
//   books      what is known, and the mutex
//   residence  the steps that a page takes
//   reclaimer  which pages go, for whom
//   relocator  which pages move aside
//   fetcher    which pages come
class Pager {
 public:
  Pager(World& world, DeviceIndex device, std::unique_ptr<Policy> policy)
      : books(world, device, std::move(policy)),
        residence(books),
        reclaimer(books, residence),
        relocator(books, residence, arrived_),
        fetcher(books, residence, reclaimer, relocator, arrived_) {}
  Pager(const Pager&) = delete;
  Pager& operator=(const Pager&) = delete;

  Books books;
  Residence residence;
  Reclaimer reclaimer;
  Relocator relocator;
  Fetcher fetcher;

  // --- pins of operators, with the mutex ---

  void pin(PageEntry* page);
  // All that `next` gives, until it gives null.
  template <class Next> void unpin(Next next, Freed& freed) noexcept {
    size_t count = 0;
    while (PageEntry* page = next()) {
      residence.drop_pin(page, freed);
      ++count;
    }
    books.contention.note_unpins(count);
  }

  // --- pages that begin on the host ---

  // Memory there for the bytes of a page that is to be, as a page-out gets it.
  // Empty if there is none. Without the mutex.
  HostPieces allocate_on_host(size_t bytes);

  // --- after an operator ---

  // What is to be done after it.
  struct Sequel {
    explicit Sequel(Books& books) : freed(books.contention) {}

    Freed freed;
    Eviction eviction{/*may_wait=*/true};
    std::vector<PageEntry*> ahead; // to be fetched; the pager pins them
    std::shared_ptr<Draft> draft;
    std::shared_ptr<void> dropped;
    Events overtaken; // the host waits for them in the end
    std::string disk_failure; // to be told
  };
  // The operator has been launched on the stream. Begins what the policy wants
  // done. With the mutex.
  void follow(const Operator& op, Stream stream, Sequel& sequel);
  // Does the rest. Without the mutex.
  void complete(Sequel& sequel);
  // See Note [The host's lead]. Without the mutex.
  void wait_for_device(const Sequel& sequel) noexcept;

 private:
  // Bytes on their way to the host while nothing more is written back early:
  // the link is slower than planned.
  static constexpr uint64_t kMostSaving = uint64_t{1} << 30;

  void obey(const Actions& actions, Sequel& sequel);
  void save(const std::vector<Page*>& pages);
  void finish_plan(Draft& draft, Sequel& sequel);

  std::condition_variable arrived_; // a page is kArriving no more
  Actions actions_; // scratch
};

} // namespace at::cuda::lms
