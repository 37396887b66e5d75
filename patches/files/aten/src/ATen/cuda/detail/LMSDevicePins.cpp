#include <ATen/cuda/detail/LMSDevice.h>

#include <ATen/cuda/detail/LMSOperatorBackward.h>
#include <ATen/cuda/detail/LMSCudaCaptures.h>
#include <ATen/cuda/detail/LMSAllocatorErrors.h>
#include <ATen/cuda/detail/LMSSettings.h>
#include <ATen/cuda/detail/LMSOperatorTouched.h>
#include <ATen/cuda/detail/LMSWaits.h>

#include <utility>

// What an operator does before and after it runs.

namespace at::cuda::lms {
namespace {

constexpr int kPinAttempts = 64; // to pin one operator's storages

} // namespace

Pins Device::pin(
    const Accesses& accesses,
    cudaStream_t stream,
    bool adopt_new) {
  if (C10_UNLIKELY(stream != nullptr && !uses_several_streams())) {
    set_uses_several_streams();
  }
  Contention& contention = pager_.books.contention;
  Contention::GiveUp give_up;
  bool is_gathered = false;
  for (int attempt = 1;; ++attempt) {
    bool is_alone = false;
    try {
      const RetryScope retried;
      if (C10_UNLIKELY(recipes_.is_any_dropped()) && !is_capturing()) {
        recipes_.prepare(accesses);
      }
      return try_pin(accesses, stream, adopt_new);
    } catch (const c10::OutOfMemoryError&) {
      // Two threads may each hold what the other one needs. This one's pins are
      // given back by now, so the other can go on, and it may try again then.
      is_alone = attempt >= kPinAttempts || !contention.others_hold_pins();
      if (is_alone && is_gathered) {
        report_error();
        throw;
      }
    }
    if (is_alone) {
      consolidation_.gather(stream, Gather::kTight);
      is_gathered = true;
    } else {
      room_.wait_for_others(contention.generation(), give_up);
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
  Residence& residence = pager_.residence;
  try {
    {
      const Lock lock(mutex());
      if (stream) {
        world_.streams().meet_current();
      }
      for (const auto& [storage, writes] : accesses) {
        disarm_if_stale(storage);
        const bool is_new = !managed(storage);
        ManagedStorage* record =
            adopt_new ? adopt(storage, stream) : managed(storage);
        if (!record) {
          continue;
        }
        pins.push_back({record, writes, is_new});
        pager_.pin(record);
        if (is_in_capture) {
          continue;
        }
        if (record->state == ManagedStorage::State::kResident) {
          residence.note_access(record, writes, stream);
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
      if (C10_UNLIKELY(Settings::get().verify())) {
        recipes_.verify(pin.record);
      }
      const Lock lock(mutex());
      residence.note_access(pin.record, pin.writes, stream);
    }
    note_writes(pins, /*is_inside=*/!adopt_new);
  } catch (...) {
    unpin(pins);
    throw;
  }
  return pins;
}

// The storage is pinned by the caller, so that it stays once it is here.
void Device::page_in(ManagedStorage* record) {
  if (C10_UNLIKELY(is_capturing())) {
    TORCH_CHECK(
        pager_.fetcher.wait_for(record),
        "A CUDA graph capture touches a tensor whose memory Large Model "
        "Support has moved to the host. Capture inside "
        "`with torch.cuda.lms.pin(...)` of the tensors that the graph uses.");
  }
  while (!pager_.fetcher.fetch(record)) {
    recipes_.make(record);
  }
}

// What the pinned storages had is over where the operator writes to them.
void Device::note_writes(const Pins& pins, bool is_inside) {
  if (C10_LIKELY(!recipes_.are_any())) {
    return;
  }
  for (const Pin& pin : pins) {
    if (!pin.writes) {
      continue;
    }
    const auto is_noted = [&] {
      const Lock lock(mutex());
      return recipes_.note_write(*pin.record, is_inside);
    };
    while (!is_noted()) {
      recipes_.make_dependents(pin.record);
    }
  }
}

void Device::give_back(const Pins& pins, Freed& freed) noexcept {
  const Pin* next = pins.begin();
  pager_.unpin(
      [&]() -> PageEntry* {
        return next == pins.end() ? nullptr : (next++)->record;
      },
      freed);
}

void Device::unpin(const Pins& pins) noexcept {
  Freed freed(pager_.books.contention);
  const Lock lock(mutex());
  world_.streams().note_work(current_stream(index_));
  give_back(pins, freed);
}

void Device::disown(const Pins& pins) const {
  pager_.books.contention.disown(pins.size());
}

void Device::unpin_disowned(const Pins& pins) noexcept {
  pager_.books.contention.take_on(pins.size());
  unpin(pins);
}

void Device::finish_operator(
    const Pins& pins,
    const Accesses& results,
    cudaStream_t stream,
    const Launched& launched) noexcept {
  const bool may_cross = !results.empty() && makes_gradients();
  Pager::Sequel sequel(pager_.books);
  bool is_look_due = false;
  {
    const Lock lock(mutex());
    is_look_due = limit_.is_look_due();
    sharing_.note_operator();
    operator_.name = launched.name;
    operator_.uses.clear();
    operator_.ns = 0;
    operator_.may_wait = may_wait_in(launched.name);
    for (const Pin& pin : pins) {
      if (!pin.record->dead) {
        const uint32_t gain = pin.writes ? 0 : recipes_.gain(*pin.record);
        operator_.uses.push_back(
            {pin.record, pin.writes, static_cast<uint8_t>(gain)});
      }
    }
    if (launched.recipe) {
      recipes_.end_written(launched.recipe, launched.results);
    }
    give_back(pins, sequel.freed);
    operator_.unmanaged =
        map().end_operator(manage(results, stream, may_cross));
    if (C10_UNLIKELY(recipes_.are_kept())) {
      operator_.unmanaged += recipes_.take_made_as_sources();
      recipes_.tell_times(operator_, launched.signature);
    }
    if (launched.recipe) {
      recipes_.end(launched.recipe, launched.results);
    }
    if (Trace* trace = Trace::of(index_)) {
      trace->add_operator(operator_, launched.span, launched.recipe.get());
    }
    if (!is_capturing()) {
      world_.streams().note_work(stream);
      pager_.follow(operator_, stream, sequel);
    }
  }
  pager_.complete(sequel);
  if (C10_UNLIKELY(is_look_due) && !is_capturing()) {
    limit_.look();
  }
  limit_.obey();
  consolidation_.take_place();
  if (C10_UNLIKELY(!sequel.overtaken.empty())) {
    const WaitScope wait(index_);
    pager_.wait_for_device(sequel);
  }
}

// Starts to manage an operator's results, and adds those that are new to
// operator_. Returns the bytes of their blocks.
size_t Device::manage(
    const Accesses& results,
    cudaStream_t stream,
    bool may_cross) {
  size_t made = 0;
  for (const Access& result : results) {
    disarm_if_stale(result.storage);
    const bool is_new = !managed(result.storage);
    ManagedStorage* record = adopt(result.storage, stream);
    if (record && record->pins == 0 && record->evictable) {
      pager_.residence.note_use(record, stream);
    }
    if (!record || !is_new) {
      continue;
    }
    if (may_cross) {
      checks_.let_cross(record);
    }
    operator_.uses.push_back({record, /*writes=*/true});
    made += record->block->size;
  }
  return made;
}

void Device::adopt_existing(c10::StorageImpl* storage) {
  const Lock lock(mutex());
  disarm_if_stale(storage);
  adopt(storage);
}

void Device::set_hint(c10::StorageImpl* storage, Hint hint) {
  const Lock lock(mutex());
  disarm_if_stale(storage);
  if (ManagedStorage* record = adopt(storage)) {
    pager_.books.policy->note_hint(*record, hint);
  }
}

} // namespace at::cuda::lms
