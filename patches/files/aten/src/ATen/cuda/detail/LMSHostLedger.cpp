#include <ATen/cuda/detail/LMSHostLedger.h>

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace at::cuda::lms {
namespace {

constexpr uint64_t kLedgerOfHost = 0x3172'6467'6c53'4d4c; // "LMSlgdr1"

} // namespace

HostLedger::HostLedger(const std::vector<std::string>& files)
    : records_(files, kLedgerOfHost, /*numbers=*/1) {
  if (const char* launched = std::getenv("LOCAL_WORLD_SIZE")) {
    launched_ = std::max(0L, std::strtol(launched, nullptr, 10));
  }
}

std::vector<std::string> HostLedger::default_files() {
  const char* chosen = std::getenv("PYTORCH_LMS_HOST_LEDGER");
  if (chosen && *chosen) {
    return std::string(chosen) == "none" ? std::vector<std::string>{}
                                         : std::vector<std::string>{chosen};
  }
  // Not XDG_RUNTIME_DIR: what a job scheduler starts has none, and would count
  // apart from what the user starts.
  const std::string name =
      "/pytorch-lms-" + std::to_string(geteuid()) + ".ledger";
  return {"/dev/shm" + name, "/tmp" + name};
}

bool HostLedger::has_room(size_t bytes, size_t limit, Claim claim) const {
  if (claim == Claim::kBeyond) {
    return true;
  }
  const Others others = this->others();
  const size_t sharers = is_shared() && claim == Claim::kShare
      ? std::max(others.processes + 1, launched_)
      : 1;
  const size_t share = limit / sharers;
  return bytes <= share && taken_ <= share - bytes &&
      taken_ + others.bytes <= limit - bytes;
}

bool HostLedger::take(size_t bytes, size_t limit, Claim claim) {
  const SharedRecords::Turn turn(records_);
  const uint64_t taken = taken_;
  records_.claim(&taken);
  if (!has_room(bytes, limit, claim)) {
    return false;
  }
  taken_ += bytes;
  write_down();
  return true;
}

// Without the mutex: whoever reads the old number at this moment is refused
// what would just fit, and nothing worse.
void HostLedger::give_back(size_t bytes) {
  taken_ -= bytes;
  write_down();
}

HostLedger::Others HostLedger::others() const {
  Others others;
  records_.visit_others([&others](const uint64_t* bytes) {
    others.bytes += *bytes;
    others.processes += *bytes > 0 ? 1 : 0;
  });
  return others;
}

void HostLedger::write_down() {
  const uint64_t taken = taken_;
  records_.write(&taken);
}

} // namespace at::cuda::lms
