#pragma once

#include <ATen/cuda/detail/LMSCorePager.h>

#include "memory.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// An event of the fake world: it happens when a test says so.
struct CUevent_st {
  bool has_happened = false;
};

namespace at::cuda::lms {

// A device for tests of the pager: nothing takes time, everything is written
// down, and what a test wants to fail fails.
class FakeWorld final : public World {
 public:
  explicit FakeWorld(const char* policy = "planned")
      : kind_(*find_policy(policy)), pager(*this, /*device=*/0, kind_.make()) {}

  static constexpr size_t kPage = size_t{2} << 20; // bytes, of pages in tests

  const PolicyKind& kind_;
  std::optional<lms_replay::Memory> memory; // the pager gives back to it
  Pager pager;

  // What was queued, and what the host did.
  struct Queued {
    Copy::Kind kind;
    bool only_overwrites;
    bool is_ahead;
    bool is_urgent;
    Event end;
    Events after;
  };
  std::vector<Queued> copies;
  std::vector<std::pair<Stream, Event>> waits;
  std::vector<std::pair<Departure, size_t>> departures; // how, for what room
  size_t host_waits = 0;
  std::vector<Event> freed_on_host; // when the memory is free
  std::vector<std::shared_ptr<DiskTransfer>> transfers;
  std::vector<std::string> warnings;

  // What is to go wrong, or to happen meanwhile.
  bool copies_fail = false;
  bool waits_fail = false;
  size_t host_pages = 1000; // there is host memory for so many
  size_t disk_pages = 0; // there is room on the disk for so many; 0: no disk
  std::string disk_error; // why transfers fail that are done from now on
  bool can_be_made = false; // all bytes, again
  size_t given_up = 0; // pages
  std::function<void()> meanwhile; // in the next allocation

  // Device memory for so many pages.
  void start(size_t pages) {
    memory.emplace(pages * kPage, pager.books);
  }

  // --- a program ---

  // The pager's, once it has ended.
  PageEntry* make() {
    return adopt(std::make_unique<PageEntry>(/*home=*/nullptr));
  }
  template <class Entry> Entry* adopt(std::unique_ptr<Entry> page) {
    page->bytes = kPage;
    Events pending;
    page->memory = allocate(*page, /*is_ahead=*/false, pending);
    const Lock lock(pager.books.mutex);
    pager.residence.begin(
        page.get(), pager.books.map.block_of(page->memory.get()));
    return page.release();
  }
  // One that begins on the host; null if that has no memory.
  PageEntry* make_on_host() {
    HostPieces host = pager.allocate_on_host(kPage);
    if (host.empty()) {
      return nullptr;
    }
    auto page = std::make_unique<PageEntry>(/*home=*/nullptr);
    page->bytes = kPage;
    const Lock lock(pager.books.mutex);
    pager.residence.begin_on_host(page.get(), std::move(host));
    return page.release();
  }
  void pin(PageEntry* page) {
    const Lock lock(pager.books.mutex);
    pager.pin(page);
  }
  void unpin(PageEntry* page) {
    Freed freed(pager.books.contention);
    const Lock lock(pager.books.mutex);
    pager.unpin([&] { return std::exchange(page, nullptr); }, freed);
  }
  // As the pager does before it fetches a page ahead, and afterwards.
  void pin_as_pager(PageEntry* page) {
    const Lock lock(pager.books.mutex);
    pager.residence.add_own_pin(page);
  }
  void unpin_as_pager(PageEntry* page) {
    Freed freed(pager.books.contention);
    const Lock lock(pager.books.mutex);
    pager.residence.drop_own_pin(page, freed);
  }
  // As a policy has it done early: the memory is kept while it drains.
  bool page_out(PageEntry* page) {
    const Lock lock(pager.books.mutex);
    HostMemory::Wait wait(/*is_allowed=*/false);
    return pager.residence.page_out(page, wait, /*room=*/0) != nullptr;
  }
  bool save(PageEntry* page) {
    const Lock lock(pager.books.mutex);
    return pager.residence.save(page);
  }
  // An operator that reads the page, or writes it.
  void use(PageEntry* page, bool writes = false) {
    pin(page);
    try {
      pager.fetcher.fetch(page);
    } catch (...) {
      unpin(page);
      throw;
    }
    {
      const Lock lock(pager.books.mutex);
      pager.residence.note_access(page, writes, page->home);
    }
    unpin(page);
  }
  void end(PageEntry* page) {
    Freed freed(pager.books.contention);
    const Lock lock(pager.books.mutex);
    if (page->state == PageEntry::State::kResident) {
      pager.residence.free_while_used(page, freed);
    }
    pager.books.policy->on_death(page, /*gain=*/0);
    pager.residence.end(page, freed);
  }
  // What the engine does for a page that was dropped. True if there was
  // anything to be done.
  bool make_again(PageEntry* page) {
    if (!pager.fetcher.begin_making(page)) {
      return false;
    }
    Events pending;
    DeviceMemory made = allocate(*page, /*is_ahead=*/false, pending);
    {
      Freed freed(pager.books.contention);
      const Lock lock(pager.books.mutex);
      pager.residence.put_back(
          page, std::move(made), page->home, nullptr, freed);
    }
    pager.fetcher.end_making();
    return true;
  }
  size_t evict_all() {
    return pager.reclaimer.reclaim({}, Scope::kAll, /*may_wait=*/true).count;
  }
  // An operator has run: what is to be done after it is done.
  void run(std::vector<Use> uses = {}) {
    Operator op;
    op.name = 1;
    op.uses = std::move(uses);
    Pager::Sequel sequel(pager.books);
    {
      const Lock lock(pager.books.mutex);
      pager.follow(op, /*stream=*/nullptr, sequel);
    }
    pager.complete(sequel);
  }
  size_t count(DiskTransfer::Kind kind) const {
    return static_cast<size_t>(std::count_if(
        transfers.begin(), transfers.end(), [kind](const auto& transfer) {
          return transfer->kind == kind;
        }));
  }
  // The disk has done all that it was asked for.
  void catch_up_on_disk() {
    for (const auto& transfer : transfers) {
      if (!transfer->end->has_happened) {
        transfer->error = disk_error;
        transfer->end->has_happened = true;
      }
    }
  }
  // All that was queued is done.
  void catch_up() {
    for (Queued& copy : copies) {
      copy.end->has_happened = true;
    }
  }
  size_t count(Copy::Kind kind) const {
    return static_cast<size_t>(
        std::count_if(copies.begin(), copies.end(), [kind](const Queued& copy) {
          return copy.kind == kind;
        }));
  }

  // --- World ---

  DeviceMemory allocate(const PageEntry& page, bool is_ahead, Events& pending)
      override {
    if (meanwhile) {
      std::exchange(meanwhile, nullptr)();
    }
    auto address = memory->allocate(page.bytes, pending);
    if (!address && !is_ahead) {
      Request request = request_for(page, *this);
      pager.reclaimer.reclaim(request, Scope::kWindow, /*may_wait=*/true);
      address = memory->allocate(page.bytes, pending);
    }
    if (!address && is_ahead) {
      return nullptr;
    }
    if (!address) {
      throw std::runtime_error("no room");
    }
    return DeviceMemory(reinterpret_cast<void*>(*address), FreeMemory{this});
  }
  void free(void* address) noexcept override {
    memory->release(reinterpret_cast<uintptr_t>(address));
  }
  size_t block_size_for(size_t bytes) const override {
    return lms_replay::block_size(bytes);
  }
  size_t growth_for(size_t bytes) const override {
    return bytes;
  }
  Event copy(const Copy& copy) override {
    if (copies_fail) {
      throw std::runtime_error("the copy failed");
    }
    const bool only_overwrites =
        copy.kind == Copy::Kind::kOut && copy.host == nullptr;
    copies.push_back(
        {copy.kind,
         only_overwrites,
         copy.is_ahead,
         copy.is_urgent,
         std::make_shared<CUevent_st>(),
         copy.after});
    return copies.back().end;
  }
  void note_departure(const PageEntry& /*page*/, Departure how, size_t room)
      override {
    departures.emplace_back(how, room);
  }
  Events queued(Stream /*stream*/) noexcept override {
    return {};
  }
  bool may_be_another(Stream /*stream*/) const override {
    return false;
  }
  void wait(
      Stream stream,
      const Events& events,
      std::optional<Activity> /*counted*/) override {
    if (waits_fail) {
      throw std::runtime_error("the wait failed");
    }
    for (const Event& event : events) {
      waits.emplace_back(stream, event);
    }
  }
  bool has_happened(const Event& event) const override {
    return !event || event->has_happened;
  }
  bool wait_on_host(const Event& event) noexcept override {
    for (const auto& transfer : transfers) {
      if (transfer->end == event && !event->has_happened) {
        transfer->error = disk_error;
      }
    }
    if (event) {
      event->has_happened = true;
      ++host_waits;
    }
    return true;
  }
  bool give_up(PageEntry& /*page*/, bool /*at_any_cost*/) override {
    given_up += can_be_made ? 1 : 0;
    return can_be_made;
  }
  HostPieces allocate_on_host(
      size_t bytes,
      HostMemory::Claim claim,
      HostMemory::Wait& /*wait*/) override {
    if (host_pages == 0 && claim != HostMemory::Claim::kBeyond) {
      return {};
    }
    --host_pages;
    return {{nullptr, bytes}};
  }
  void free_on_host(HostPieces /*pieces*/, Event ready) override {
    ++host_pages;
    freed_on_host.push_back(std::move(ready));
  }
  bool finish(HostMemory::Wait& wait) override {
    return wait.is_needed() && wait.is_allowed() &&
        wait_on_host(std::exchange(wait, HostMemory::Wait(/*is_allowed=*/true))
                         .awaited());
  }
  bool has_disk() const override {
    return disk_pages > 0;
  }
  std::shared_ptr<DiskSpace> allocate_on_disk(size_t /*bytes*/) override {
    if (on_disk == disk_pages) {
      return nullptr;
    }
    return std::make_shared<Space>(on_disk);
  }
  void transfer(
      const std::shared_ptr<DiskTransfer>& queued,
      const Event& /*after*/) override {
    queued->end = std::make_shared<CUevent_st>();
    transfers.push_back(queued);
  }
  const Traits& traits() const override {
    return kind_.traits;
  }
  void warn(const char* what, const std::exception& error) noexcept override {
    warnings.push_back(std::string(what) + error.what());
  }

  // Pages on the disk.
  size_t on_disk = 0;
  struct Space final : DiskSpace {
    explicit Space(size_t& count) : count(count) {
      ++count;
    }
    ~Space() override {
      --count;
    }
    size_t& count;
  };
};

} // namespace at::cuda::lms
