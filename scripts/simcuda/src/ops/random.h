// Random numbers: a CPU generator seeded with the CUDA generator's seed and
// offset, so that manual_seed, saved states and checkpointing's replay work.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cuda/PhiloxCudaState.h>

namespace simcuda {

// True when calls of the operator draw random numbers.
bool is_random(const c10::FunctionSchema& schema);

// Advances the CUDA generator (the device's default one when not defined) and
// returns where it was. In a capture that is where replays will find it: in
// device memory, which may be read when the operator is computed only.
at::PhiloxCudaState next_state(const std::optional<at::Generator>& cuda,
                               c10::DeviceIndex device);

// A CPU generator for a call that draws from there.
at::Generator generator_at(const at::PhiloxCudaState& state);

// A CPU generator for one point of a sequence; the same for the same arguments.
at::Generator generator_at(uint64_t seed, uint64_t offset);

// The generator of the call being computed, for hand-written operators, whose
// schemas have none. Empty outside a random call.
at::Generator& call_generator();

}  // namespace simcuda
