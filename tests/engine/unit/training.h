#pragma once

#include "machine.h"

#include <vector>

namespace at::cuda::lms {

// A model of equal layers, trained with an optimizer that keeps one number per
// parameter: 160 bytes of state, and up to 82 of activations or gradients.
class Training {
 public:
  explicit Training(Machine& machine) : machine_(machine) {
    for (int i = 0; i < kLayers; ++i) {
      weights_.push_back(machine.make(4));
      moments_.push_back(machine.make(4));
    }
  }

  // The traffic of one iteration.
  Moved iterate() {
    const Moved before = machine_.moved();
    std::vector<Page*> activations{made(1, {}, 2)};
    for (Page* weight : weights_) {
      activations.push_back(made(2, {activations.back(), weight}, 2));
    }
    std::vector<Page*> gradients(kLayers);
    Page* gradient = made(3, {activations.back()}, 2);
    for (int i = kLayers - 1; i >= 0; --i) {
      Page* next = machine_.make(2);
      gradients[i] = machine_.make(4);
      machine_.run(
          4, {gradient, activations[i], weights_[i]}, {next, gradients[i]});
      machine_.destroy(gradient);
      machine_.destroy(activations[i + 1]);
      gradient = next;
    }
    machine_.destroy(gradient);
    machine_.destroy(activations[0]);
    for (int i = 0; i < kLayers; ++i) {
      machine_.run(5, {gradients[i]}, {weights_[i], moments_[i]});
      machine_.destroy(gradients[i]);
    }
    return machine_.moved() - before;
  }

  void evaluate() {
    Page* activation = made(1, {}, 2);
    for (Page* weight : weights_) {
      Page* next = made(6, {activation, weight}, 2);
      machine_.destroy(activation);
      activation = next;
    }
    machine_.destroy(activation);
  }

 private:
  static constexpr int kLayers = 20;

  Page* made(uint64_t name, const std::vector<Page*>& reads, size_t bytes) {
    Page* page = machine_.make(bytes);
    machine_.run(name, reads, {page});
    return page;
  }

  Machine& machine_;
  std::vector<Page*> weights_;
  std::vector<Page*> moments_;
};

} // namespace at::cuda::lms
