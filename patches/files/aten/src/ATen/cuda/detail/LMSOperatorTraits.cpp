#include <ATen/cuda/detail/LMSOperatorTraits.h>

#include <ATen/cuda/detail/LMSOperatorKernel.h>
#include <ATen/cuda/detail/LMSOperatorRandom.h>

#include <algorithm>
#include <array>
#include <string>

namespace at::cuda::lms {
namespace {

bool updates_silently(const std::string& name) {
  constexpr std::array<const char*, 4> kSilent{
      "batch_norm", "_rnn", "rrelu_with_noise", "_copy_from"};
  return std::any_of(kSilent.begin(), kSilent.end(), [&](const char* part) {
    return name.find(part) != std::string::npos;
  });
}

bool reads_to_host(const std::string& name) {
  constexpr std::array<const char*, 4> kReading{
      "aten::_local_scalar_dense",
      "aten::copy_",
      "aten::equal",
      "aten::nonzero"};
  return std::any_of(kReading.begin(), kReading.end(), [&](const char* known) {
    return name == known;
  });
}

} // namespace

OperatorTraits::OperatorTraits(const c10::OperatorHandle& op)
    : name(std::hash<c10::OperatorName>()(op.operator_name())) {
  const auto& schema = op.schema();
  const bool is_aten = starts_with(schema.name(), "aten::");
  is_from_pytorch = is_aten || starts_with(schema.name(), "prims::");
  declares_writes =
      is_kernel(op) || (is_from_pytorch && !updates_silently(schema.name()));
  is_batch_norm = is_aten &&
      schema.name().find("batch_norm") != std::string::npos &&
      schema.argumentIndexWithName("training").has_value();
  is_random = lms::is_random(op);
  is_read_by_host = reads_to_host(schema.name());
  blas = blas_use(schema.name());
  has_no_effects = declares_writes && !schema.is_mutable() && !is_random;
}

} // namespace at::cuda::lms
