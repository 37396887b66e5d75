#include "random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>

#include <array>
#include <mutex>

namespace simcuda {
namespace {

// Operators that draw from the device's default generator without saying so.
constexpr std::array<const char*, 4> kRandomWithoutGenerator = {
    "aten::native_dropout", "aten::_fused_dropout",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_efficient_attention"};

// What one call takes from the sequence; CUDA's generator counts in fours.
constexpr uint64_t kStep = 4;

// The finaliser of splitmix64: neighbouring inputs give unrelated outputs.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

}  // namespace

bool is_random(const c10::FunctionSchema& schema) {
  for (const char* name : kRandomWithoutGenerator) {
    if (schema.name() == name) {
      return true;
    }
  }
  for (const c10::Argument& argument : schema.arguments()) {
    const auto& type = argument.type();
    const auto optional = type->cast<c10::OptionalType>();
    const auto kind =
        optional ? optional->getElementType()->kind() : type->kind();
    if (kind == c10::TypeKind::GeneratorType) {
      return true;
    }
  }
  return false;
}

at::PhiloxCudaState next_state(const std::optional<at::Generator>& cuda,
                               c10::DeviceIndex device) {
  auto* generator = at::get_generator_or_default<at::CUDAGeneratorImpl>(
      cuda, at::cuda::detail::getDefaultCUDAGenerator(device));
  std::lock_guard<std::mutex> lock(generator->mutex_);
  return generator->philox_cuda_state(kStep);
}

at::Generator generator_at(const at::PhiloxCudaState& state) {
  if (!state.captured_) {
    return generator_at(state.seed_.val, state.offset_.val);
  }
  return generator_at(
      static_cast<uint64_t>(*state.seed_.ptr),
      static_cast<uint64_t>(*state.offset_.ptr) + state.offset_intragraph_);
}

at::Generator generator_at(uint64_t seed, uint64_t offset) {
  return at::detail::createCPUGenerator(mix(mix(seed) + offset));
}

at::Generator& call_generator() {
  thread_local at::Generator generator;
  return generator;
}

}  // namespace simcuda
