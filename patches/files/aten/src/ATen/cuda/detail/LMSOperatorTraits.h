#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cuda/detail/LMSOperatorWorkspace.h>

#include <cstdint>
#include <string_view>

namespace at::cuda::lms {

inline bool starts_with(std::string_view name, std::string_view prefix) {
  return name.substr(0, prefix.size()) == prefix;
}

// What follows from an operator's schema. To find it takes longer than to pin a
// storage, so it is found once for each operator that has a kernel of LMS.
struct OperatorTraits {
  explicit OperatorTraits(const c10::OperatorHandle& op);

  uint64_t name; // its hash
  bool is_from_pytorch;
  // What the schema says about writes can be relied on for PyTorch's own
  // operators, but for a few older ones that update an argument silently.
  bool declares_writes;
  bool is_batch_norm; // forward
  bool is_random; // see Note [Drawing random numbers again]
  // It writes nothing but its results and draws no random numbers.
  bool has_no_effects;
  // The host reads its result, or may.
  bool is_read_by_host;
  BlasUse blas;
};

} // namespace at::cuda::lms
