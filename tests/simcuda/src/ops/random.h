// Random numbers: a CPU generator seeded with the CUDA generator's seed and
// offset, so that manual_seed, saved states and checkpointing's replay work.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace simcuda {

// True when calls of the operator draw random numbers.
bool is_random(const c10::FunctionSchema& schema);

// Advances the CUDA generator (the device's default one when not defined) and
// returns a CPU generator for this call.
at::Generator next_generator(
    const std::optional<at::Generator>& cuda, c10::DeviceIndex device);

// A CPU generator for one point of a sequence; the same for the same arguments.
at::Generator generator_at(uint64_t seed, uint64_t offset);

// The generator of the call being computed, for hand-written operators, whose
// schemas have none. Empty outside a random call.
at::Generator& call_generator();

}  // namespace simcuda
