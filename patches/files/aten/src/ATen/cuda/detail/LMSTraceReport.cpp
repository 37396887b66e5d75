#include <ATen/cuda/detail/LMSTrace.h>

#include <ATen/cuda/detail/LMSCudaCaptures.h>
#include <ATen/cuda/detail/LMSOperatorTouched.h>
#include <ATen/cuda/detail/LMSSettings.h>

#include <algorithm>
#include <iterator>
#include <utility>

// What a report has besides what a trace has: see Note [Recording a report].

namespace at::cuda::lms {
namespace {

const char* name_of(Copy::Kind kind) {
  return kind == Copy::Kind::kIn ? "in"
      : kind == Copy::Kind::kOut ? "out"
                                 : "move";
}

const char* name_of(DiskTransfer::Kind kind) {
  return kind == DiskTransfer::Kind::kRead ? "read" : "write";
}

const char* name_of(Departure how) {
  return how == Departure::kCopied ? "copied"
      : how == Departure::kClean   ? "clean"
                                   : "dropped";
}

const char* name_of(std::optional<Activity> cause) {
  return !cause                           ? "host"
      : cause == Activity::kWaitForDemand ? "demand"
      : cause == Activity::kWaitForAhead  ? "ahead"
                                          : "memory";
}

// Where the first bytes lie; 0: nowhere.
std::string address_of(const HostPieces& pieces) {
  return std::to_string(
      pieces.empty() ? 0 : reinterpret_cast<uintptr_t>(pieces.front().begin));
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
    }
    // Others than these do not occur in names, and would not be JSON.
    result += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return result + "\"";
}

} // namespace

Trace* Trace::report_of(c10::DeviceIndex device) noexcept {
  Trace* trace = of(device);
  return C10_UNLIKELY(trace != nullptr) && trace->is_report() ? trace : nullptr;
}

void Trace::open_report(c10::DeviceIndex device, Books& books) {
  std::unique_ptr<Trace> report(new Trace(device, /*path=*/""));
  report->streams_.push_back(current_stream(device));
  // Until the report is published under it, nothing changes that it lists.
  const Lock lock(books.mutex);
  for (const PageEntry* page : books.pages.all()) {
    report->add_page(*page);
  }
  publish(std::move(report));
}

std::string Trace::close_report() {
  if (Settings::get().is_forked_child()) {
    return {}; // it belongs to the parent process, as CUDA does
  }
  Trace* report = get();
  TORCH_CHECK(report && report->is_report(), "no report is being recorded");
  const Event now =
      record_timed_event(report->device_, current_stream(report->device_));
  recorded_.store(nullptr);
  {
    std::lock_guard<std::mutex> lock(report->mutex_);
    report->add(R"({"end": 0)", now, now);
  }
  report->write_lines(/*wait=*/true);
  return std::move(report->report_);
}

void Trace::enter_module(const std::string& name) {
  Trace* report = get();
  if (report && report->is_report()) {
    std::lock_guard<std::mutex> lock(report->mutex_);
    report->add(R"({"module": )" + quoted(name));
  }
}

// A storage that is there when the report begins, or begins on the host.
void Trace::add_page(const PageEntry& page) {
  const bool is_here = page.state == PageEntry::State::kResident;
  const bool is_read = page.host.empty() && page.transfer; // from disk, now
  add(R"({"page": )" + std::to_string(page.id) + R"(, "bytes": )" +
      std::to_string(page.bytes) + R"(, "on_device": )" +
      (is_here ? "1" : "0") + R"(, "host": )" +
      address_of(is_read ? page.transfer->host : page.host));
}

void Trace::add_copy(const Copy& copy, const Event& begin, const Event& end) {
  std::lock_guard<std::mutex> lock(mutex_);
  copy_of_[end.get()] = copies_++;
  add(std::string(R"({"copy": ")") + name_of(copy.kind) + R"(", "storage": )" +
          std::to_string(copy.page.id) + R"(, "ahead": )" +
          (copy.is_ahead ? "1" : "0") + R"(, "host": )" +
          (copy.host ? address_of(*copy.host) : "0"),
      begin,
      end);
}

void Trace::add_transfer(
    const DiskTransfer& transfer,
    const Event& begin,
    const Event& end) {
  std::lock_guard<std::mutex> lock(mutex_);
  add(std::string(R"({"disk": ")") + name_of(transfer.kind) +
          R"(", "storage": )" + std::to_string(transfer.page->id) +
          R"(, "host": )" + address_of(transfer.host),
      begin,
      end);
}

void Trace::add_departure(const Page& page, Departure how, size_t room) {
  std::lock_guard<std::mutex> lock(mutex_);
  add(R"({"left": )" + std::to_string(page.id) + R"(, "how": ")" +
      name_of(how) + R"(", "room": )" + std::to_string(room));
}

void Trace::add_wait(
    cudaStream_t stream,
    const Events& events,
    std::optional<Activity> cause,
    const Event& begin,
    const Event& end) {
  std::lock_guard<std::mutex> lock(mutex_);
  int64_t last = -1;
  for (const Event& event : events) {
    const auto copy = copy_of_.find(event.get());
    last = copy == copy_of_.end() ? last : std::max(last, copy->second);
  }
  add(std::string(R"({"wait": ")") + name_of(cause) + R"(", "copy": )" +
          std::to_string(last) + stream_field(stream),
      begin,
      end);
}

void Trace::add_made(
    const Page& page,
    const std::string& op,
    cudaStream_t stream,
    const Event& begin,
    const Event& end) {
  std::lock_guard<std::mutex> lock(mutex_);
  add(R"({"made": )" + std::to_string(page.id) + R"(, "op": )" + quoted(op) +
          stream_field(stream),
      begin,
      end);
}

void Trace::add_host_free(const HostPieces& pieces) {
  std::lock_guard<std::mutex> lock(mutex_);
  add(R"({"host_free": )" + address_of(pieces));
}

// With the number of a stream; nothing in a trace.
std::string Trace::stream_field(cudaStream_t stream) {
  if (!is_report()) {
    return {};
  }
  auto known = std::find(streams_.begin(), streams_.end(), stream);
  if (known == streams_.end()) {
    known = streams_.insert(known, stream);
  }
  return R"(, "stream": )" +
      std::to_string(std::distance(streams_.begin(), known));
}

} // namespace at::cuda::lms
