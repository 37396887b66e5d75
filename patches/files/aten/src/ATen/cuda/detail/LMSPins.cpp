#include <ATen/cuda/detail/LMSDevice.h>

#include <ATen/cuda/detail/LMSAllocator.h>
#include <ATen/cuda/detail/LMSBackward.h>
#include <ATen/cuda/detail/LMSCaptures.h>
#include <ATen/cuda/detail/LMSCollectives.h>
#include <ATen/cuda/detail/LMSDeviceLock.h>
#include <ATen/cuda/detail/LMSErrors.h>
#include <ATen/cuda/detail/LMSSettings.h>
#include <ATen/cuda/detail/LMSTouched.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <array>
#include <chrono>

// Pins: what an operator does before and after it runs, and how threads that
// compete for memory wait for each other's pins.

namespace at::cuda::lms {
namespace {

// What the calling thread has pinned through `pin` and not given back. A pin
// that another thread gives back makes it inexact, which can only make
// wait_for_others wait in vain, for a while, or not at all.
int64_t& pins_of_this_thread(c10::DeviceIndex index) {
  static thread_local std::array<int64_t, C10_COMPILE_TIME_MAX_GPUS> pins{};
  return pins.at(static_cast<uint8_t>(index));
}

constexpr std::chrono::seconds kLongestWait{10};
constexpr int kPinAttempts = 64; // to pin one operator's storages

} // namespace

Pins Device::pin(
    const Accesses& accesses,
    cudaStream_t stream,
    bool adopt_new) {
  if (C10_UNLIKELY(stream != nullptr && !uses_several_streams())) {
    set_uses_several_streams();
  }
  GiveUp give_up;
  bool is_gathered = false;
  for (int attempt = 1;; ++attempt) {
    bool is_alone = false;
    try {
      const RetryScope retried;
      return try_pin(accesses, stream, adopt_new);
    } catch (const c10::OutOfMemoryError&) {
      // Two threads may each hold what the other one needs. This one's pins are
      // given back by now, so the other can go on, and it may try again then.
      is_alone = attempt >= kPinAttempts || !others_hold_pins();
      if (is_alone && is_gathered) {
        report_error();
        throw;
      }
    }
    if (is_alone) {
      gather(stream, Gather::kTight);
      is_gathered = true;
    } else {
      wait_for_others(generation(), give_up);
    }
  }
}

Pins Device::try_pin(
    const Accesses& accesses,
    cudaStream_t stream,
    bool adopt_new) {
  Pins pins;
  c10::SmallVector<Pin, 8> absent;
  const bool is_in_capture = is_capturing();
  try {
    {
      Lock lock(*this);
      if (stream) {
        streams_.meet_current();
      }
      for (const auto& [storage, writes] : accesses) {
        disarm_if_stale(storage);
        ManagedStorage* record =
            adopt_new ? adopt(storage, stream) : managed(storage);
        if (!record) {
          continue;
        }
        take_pin(record, writes, pins);
        if (is_in_capture) {
          continue;
        }
        if (record->state == ManagedStorage::State::kResident) {
          note_access(pins.back(), stream);
        } else {
          absent.push_back(pins.back());
        }
      }
    }
    if (C10_UNLIKELY(is_in_capture)) {
      for (const Pin& pin : pins) {
        hold(pin.record);
      }
    }
    for (const Pin& pin : absent) {
      page_in(pin.record);
      Lock lock(*this);
      note_access(pin, stream);
    }
  } catch (...) {
    unpin(pins);
    throw;
  }
  return pins;
}

// Pins for an operator: the pin is counted as one that will be given back.
void Device::take_pin(ManagedStorage* record, bool writes, Pins& pins) {
  pins.push_back({record, writes});
  add_pin(record);
  ++operator_pins_;
  ++pins_of_this_thread(index_);
}

void Device::give_back(const Pins& pins, Freed& freed) noexcept {
  for (const Pin& pin : pins) {
    drop_pin(pin.record, freed);
  }
  if (!pins.empty()) {
    operator_pins_ -= static_cast<int64_t>(pins.size());
    pins_of_this_thread(index_) -= static_cast<int64_t>(pins.size());
    note_change();
  }
}

void Device::unpin(const Pins& pins) noexcept {
  Freed freed(*this);
  Lock lock(*this);
  streams_.note_work(current_stream(index_));
  give_back(pins, freed);
}

void Device::disown(const Pins& pins) const {
  pins_of_this_thread(index_) -= static_cast<int64_t>(pins.size());
}

void Device::unpin_disowned(const Pins& pins) noexcept {
  pins_of_this_thread(index_) += static_cast<int64_t>(pins.size());
  unpin(pins);
}

void Device::finish_operator(
    const Pins& pins,
    const Accesses& results,
    cudaStream_t stream,
    uint64_t name,
    const Trace::Span& span) noexcept {
  const bool may_cross = !results.empty() && makes_gradients();
  Freed freed(*this);
  Pins ahead;
  Eviction eviction(/*may_wait=*/true);
  Event overtaken;
  std::shared_ptr<Draft> draft;
  std::shared_ptr<void> dropped;
  bool is_look_due = false;
  {
    Lock lock(*this);
    is_look_due = limit_rule_.is_due();
    operator_.name = name;
    operator_.uses.clear();
    for (const auto& [record, writes] : pins) {
      if (!record->dead) {
        operator_.uses.push_back({record, writes});
      }
    }
    give_back(pins, freed);
    size_t made = 0;
    for (const Access& result : results) {
      if (ManagedStorage* record = manage(result.storage, stream, may_cross)) {
        operator_.uses.push_back({record, /*writes=*/true});
        made += record->block->size;
      }
    }
    const size_t unmanaged = layout_.allocated() - page_bytes_;
    operator_.unmanaged =
        std::max(unmanaged, peak_unmanaged_ - std::min(peak_unmanaged_, made));
    peak_unmanaged_ = unmanaged;
    if (Trace* trace = this->trace()) {
      trace->add_operator(operator_, span);
    }
    if (!is_capturing()) {
      streams_.note_work(stream);
      actions_.evict.clear();
      actions_.fetch.clear();
      policy_->on_operator(operator_, actions_);
      ahead = obey(actions_, eviction, freed);
      draft = std::move(actions_.draft);
      dropped = std::move(actions_.dropped);
      overtaken = end_to_wait_for(stream);
    }
  }
  dropped.reset();
  freed.let_go();
  finish(eviction);
  if (C10_UNLIKELY(draft != nullptr)) {
    finish_plan(*draft, eviction, freed, ahead);
  }
  if (!ahead.empty()) {
    fetch_ahead(ahead);
  }
  if (C10_UNLIKELY(is_look_due) && !is_capturing()) {
    look_at_card();
  }
  if (C10_UNLIKELY(is_limit_to_obey_.load(std::memory_order_relaxed))) {
    obey_limit();
  }
  if (C10_UNLIKELY(is_consolidation_due_.load(std::memory_order_relaxed))) {
    if (const auto stream_of_all = stream_to_consolidate()) {
      consolidate(*stream_of_all);
    }
  }
  wait_on_host(overtaken); // see Note [The host's lead]
}

// The record of an operator's result if it is new.
ManagedStorage* Device::manage(
    c10::StorageImpl* storage,
    cudaStream_t stream,
    bool may_cross) {
  disarm_if_stale(storage);
  const bool is_new = !managed(storage);
  ManagedStorage* record = adopt(storage, stream);
  if (record && record->pins == 0 && record->evictable) {
    note_use(record, stream);
  }
  if (!record || !is_new) {
    return nullptr;
  }
  if (may_cross) {
    let_cross(record);
  }
  return record;
}

void Device::adopt_existing(c10::StorageImpl* storage) {
  Lock lock(*this);
  disarm_if_stale(storage);
  adopt(storage);
}

// Works on a plan, with the mutex for a part at a time (Note [Making a plan]).
void Device::finish_plan(
    Draft& draft,
    Eviction& eviction,
    Freed& freed,
    Pins& ahead) {
  bool goes_on = true;
  while (goes_on) {
    draft.compute();
    {
      Lock lock(*this);
      actions_.evict.clear();
      actions_.fetch.clear();
      goes_on = policy_->advance(draft, actions_);
      // At once: pages may die before the next part.
      const Pins more = obey(actions_, eviction, freed);
      ahead.append(more.begin(), more.end());
    }
    freed.let_go();
    finish(eviction);
  }
}

// Starts the evictions that the policy wants, and pins what it wants to be
// fetched.
Pins Device::obey(const Actions& actions, Eviction& eviction, Freed& freed) {
  Pins ahead;
  eviction.keeps_memory = true; // until somebody needs it
  eviction.add(actions.evict);
  evict(eviction, freed);
  if (!actions.fetch.empty()) {
    note_arrivals();
  }
  for (Page* page : actions.fetch) {
    if (copies_in_.size() + ahead.size() >= kMostArriving) {
      break;
    }
    if (!page->resident) {
      take_pin(static_cast<ManagedStorage*>(page), /*writes=*/false, ahead);
    }
  }
  return ahead;
}

// The end of the operators that the host is too far ahead of, operator_ being
// the last one; null if it is not.
Event Device::end_to_wait_for(cudaStream_t stream) noexcept {
  if (copies_in_.empty() && write_backs_.empty()) {
    lead_.clear();
    return {};
  }
  if (!lead_.add(operator_)) {
    return {};
  }
  note_arrivals();
  note_write_backs();
  return lead_.put(event_or_drained(index_, stream)).value_or(nullptr);
}

void Device::note_change() noexcept {
  ++generation_;
  if (waiters_.load() > 0) {
    changed_.notify_all();
  }
}

bool Device::others_hold_pins() {
  Lock lock(*this);
  return letting_go_.load() > 0 || operator_pins_ > pins_of_this_thread(index_);
}

bool Device::wait_for_others(uint64_t seen, GiveUp& give_up) {
  using Clock = std::chrono::steady_clock;
  if (!give_up) {
    give_up = Clock::now() + kLongestWait;
  }
  ++waiters_;
  const int64_t own = pins_of_this_thread(index_);
  {
    Lock lock(*this);
    waiting_pins_ += own;
    changed_.notify_all(); // the others may wait for this thread's pins
  }
  // The host waits because the memory it needs is in use by operators that
  // other threads are launching right now, or by collectives under way. It
  // looks every so often, since a change may be announced without the mutex.
  // With no pins of its own it waits for threads that wait too: the first of
  // them to give up moves on.
  bool changed = false;
  bool is_hopeful = true;
  while (!changed && is_hopeful && Clock::now() < *give_up) {
    release_completed_collectives();
    Lock lock(*this);
    changed = generation() != seen;
    const int64_t hopeless = own == 0 ? 0 : waiting_pins_;
    is_hopeful = letting_go_.load() > 0 || operator_pins_ > hopeless;
    if (!changed && is_hopeful) {
      lock.wait_for(changed_, std::chrono::milliseconds{1});
    }
  }
  {
    Lock lock(*this);
    waiting_pins_ -= own;
  }
  --waiters_;
  return changed;
}

void Device::add_pin(ManagedStorage* record) {
  if (record->pins++ > 0) {
    return;
  }
  for (const Pool pool : {kAll, record->pool()}) {
    stats_.pinned[pool].add(1);
    stats_.pinned_bytes[pool].add(static_cast<int64_t>(record->bytes));
  }
  update_page(record);
  if (record->state == ManagedStorage::State::kResident) {
    record->show_address();
  }
}

void Device::drop_pin(ManagedStorage* record, Freed& freed) noexcept {
  if (--record->pins > 0) {
    return;
  }
  for (const Pool pool : {kAll, record->pool()}) {
    stats_.pinned[pool].remove(1);
    stats_.pinned_bytes[pool].remove(static_cast<int64_t>(record->bytes));
  }
  if (record->dead) {
    record->remove_pinned_mark();
    freed.records.emplace_back(record);
    return;
  }
  record->hide_address();
  update_page(record);
}

// Work on the stream is about to use the resident bytes.
void Device::note_access(const Pin& pin, cudaStream_t stream) {
  note_use(pin.record, stream);
  if (pin.writes) {
    drop_host_copy(pin.record);
  }
}

void Device::note_use(ManagedStorage* record, cudaStream_t stream) {
  const bool is_user = record->is_used_on(stream);
  if (is_user && !streams_.is_external(stream)) {
    return;
  }
  // Another stream with the handle may have waited for it.
  if (record->arrival && !(is_user && has_happened(record->arrival))) {
    wait_timed(stream, {record->arrival}, record->waits_for);
  }
  if (!is_user) {
    record->users.push_back(stream);
  }
}

// Makes the stream wait, and has it told how long that took.
void Device::wait_timed(
    cudaStream_t stream,
    const Handover::Events& events,
    Activity activity) {
  c10::cuda::CUDAGuard guard(index_);
  Event begin = record_timed_event(index_, stream);
  for (const Event& event : events) {
    wait_event(stream, event);
  }
  times_.add(activity, std::move(begin), record_timed_event(index_, stream));
}

void Device::wait_for_memory(
    cudaStream_t stream,
    const Handover::Events& pending) {
  if (!pending.empty()) {
    Lock lock(*this);
    wait_timed(stream, pending, Activity::kWaitForMemory);
    streams_.note_work(stream); // it may free the memory without using it
  }
}

} // namespace at::cuda::lms
