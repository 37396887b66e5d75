#include <ATen/cuda/detail/LMSTrace.h>

#include <ATen/cuda/detail/LMSCudaCaptures.h>
#include <ATen/cuda/detail/LMSSettings.h>
#include <ATen/cuda/detail/LMSOperatorTouched.h>
#include <c10/util/Exception.h>

#include <cerrno>
#include <iomanip>
#include <locale>
#include <sstream>
#include <system_error>
#include <utility>

namespace at::cuda::lms {
namespace {

constexpr size_t kLinesAtOnce = 1024; // written together
constexpr int kDigits = 3; // of microseconds: the clock's steps are longer

// A JSON list of the ids of the pages that are used so.
template <class Is>
std::string ids(const std::vector<Use>& uses, Is is_listed) {
  std::string list;
  for (const Use& use : uses) {
    if (is_listed(use)) {
      list += (list.empty() ? "" : ", ") + std::to_string(use.page->id);
    }
  }
  return "[" + list + "]";
}

} // namespace

std::atomic<Trace*> Trace::recorded_{nullptr};

Trace::Trace(c10::DeviceIndex device, const std::string& path)
    : device_(device),
      path_(path),
      origin_(
          path.empty() ? record_timed_event(device, current_stream(device))
                       : nullptr) {}

Trace* Trace::of(c10::DeviceIndex device) noexcept {
  Trace* trace = get();
  return C10_UNLIKELY(trace != nullptr) && trace->device_ == device ? trace
                                                                    : nullptr;
}

// A trace that is over is leaked: another thread may be adding a line.
void Trace::publish(std::unique_ptr<Trace> trace) {
  Trace* none = nullptr;
  TORCH_CHECK(
      recorded_.compare_exchange_strong(
          none, trace.get(), std::memory_order_acq_rel),
      "Large Model Support is recording ",
      none->is_report() ? "a report" : "a trace (PYTORCH_LMS_TRACE)",
      " already. It records one at a time.");
  [[maybe_unused]] const Trace* leaked = trace.release();
}

void Trace::open(const std::string& path, const std::string& header) {
  std::unique_ptr<Trace> trace(new Trace(/*device=*/0, path));
  errno = 0;
  trace->file_.open(path, std::ios::binary | std::ios::trunc);
  trace->check_file();
  trace->write(header + "\n");
  publish(std::move(trace));
}

void Trace::close() {
  if (Settings::get().is_forked_child()) {
    return; // the file belongs to the parent process, as CUDA does
  }
  if (Trace* trace = recorded_.exchange(nullptr)) {
    trace->write_lines(/*wait=*/true);
  }
}

void Trace::step() {
  Trace* trace = get();
  if (!trace || Settings::get().is_forked_child()) {
    return;
  }
  {
    std::lock_guard<std::mutex> lock(trace->mutex_);
    trace->add(R"({"step": )" + std::to_string(trace->steps_++));
  }
  trace->write_lines(/*wait=*/false);
}

Trace::Span Trace::begin(const c10::OperatorName& name) {
  Trace* trace = get();
  if (C10_LIKELY(trace == nullptr) || is_capturing()) {
    return {};
  }
  cudaStream_t stream = current_stream(trace->device_);
  return {
      c10::toString(name),
      trace->device_,
      stream,
      record_timed_event(trace->device_, stream),
      nullptr};
}

void Trace::end(Span& span) {
  if (span.begin) {
    span.end = record_timed_event(span.device, span.stream);
  }
}

// A trace does not say where a storage begins: a replay finds it a place.
void Trace::add_alloc(const PageEntry& storage) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (is_report() && storage.state != PageEntry::State::kResident) {
    add_page(storage);
    return;
  }
  add(R"({"alloc": )" + std::to_string(storage.id) + R"(, "bytes": )" +
      std::to_string(storage.bytes) + R"(, "kind": "other")");
}

void Trace::add_free(const Page& storage) {
  std::lock_guard<std::mutex> lock(mutex_);
  add(R"({"free": )" + std::to_string(storage.id));
}

void Trace::add_operator(
    const Operator& op,
    const Span& span,
    const Ingredients* recipe) {
  if (!span.end || op.uses.empty()) {
    return;
  }
  const auto reads = [](const Use& use) { return !use.writes; };
  const auto writes = [](const Use& use) { return use.writes; };
  const auto is_made = [recipe](const Use& use) {
    return recipe && use.writes &&
        Values::is_made_by(*entry(use.page), *recipe);
  };
  std::lock_guard<std::mutex> lock(mutex_);
  add(R"({"op": ")" + span.name + R"(", "reads": )" + ids(op.uses, reads) +
          R"(, "writes": )" + ids(op.uses, writes) + R"(, "again": )" +
          ids(op.uses, is_made) + stream_field(span.stream),
      span.begin,
      span.end);
}

void Trace::add(std::string text, Event begin, Event end) {
  lines_.push_back({std::move(text), std::move(begin), std::move(end)});
  ++new_lines_;
}

void Trace::write_completed() {
  Trace* trace = get();
  if (!trace) {
    return;
  }
  {
    std::lock_guard<std::mutex> lock(trace->mutex_);
    if (trace->new_lines_ < kLinesAtOnce) {
      return;
    }
  }
  trace->write_lines(/*wait=*/false);
}

// Writes lines up to the first operator that is not done; if `wait`, all.
void Trace::write_lines(bool wait) {
  std::lock_guard<std::mutex> lock(mutex_);
  new_lines_ = 0;
  if (wait && origin_) {
    synchronize(origin_);
  } else if (!has_happened(origin_)) {
    return; // another stream may be done before
  }
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text << std::fixed << std::setprecision(kDigits);
  for (; !lines_.empty(); lines_.pop_front()) {
    const Line& line = lines_.front();
    if (line.begin && wait) {
      synchronize(line.end);
    } else if (!has_happened(line.end)) {
      break;
    }
    text << line.text;
    if (line.begin) {
      write_times(text, line);
    }
    text << "}\n";
    copy_of_.erase(line.end.get());
  }
  write(text.str());
}

void Trace::write_times(std::ostream& text, const Line& line) const {
  if (is_report()) {
    text << R"(, "at": [)" << microseconds_between(origin_, line.begin) << ", "
         << microseconds_between(origin_, line.end) << "]";
  } else {
    text << R"(, "us": )" << microseconds_between(line.begin, line.end);
  }
}

// Whole lines, so that a process that dies leaves a trace that can be read.
void Trace::write(const std::string& text) {
  if (is_report()) {
    report_ += text;
    return;
  }
  errno = 0;
  file_ << text << std::flush;
  check_file();
}

// Throws the error of the last operation on the file.
void Trace::check_file() {
  if (!file_) {
    const int error = errno;
    recorded_.store(nullptr);
    TORCH_CHECK(
        false,
        "Cannot write the trace of Large Model Support to ",
        path_,
        ": ",
        std::generic_category().message(error),
        ". Recording has ended. PYTORCH_LMS_TRACE names the file.");
  }
}

} // namespace at::cuda::lms
