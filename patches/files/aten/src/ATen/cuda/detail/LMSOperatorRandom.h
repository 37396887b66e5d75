#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace at::cuda::lms {

// Note [Drawing random numbers again]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// The generator of a device is a counter: the random numbers that an operator
// draws follow from the seed and from the offset that it begins at. So dropout
// gives the same bits again if the device's default generator has, while it
// runs, the seed and offset of that time. Who else draws from the generator
// meanwhile would get other numbers than without LMS. Therefore
//  - operators that draw (upstream tags them) wait while an operator draws
//    again on another thread, which waits for those under way;
//  - the one that draws again waits for no memory that others have: it fails,
//    gives back its pins, and is tried again;
//  - what was drawn is only known of an operator if no other thread drew at the
//    same time.
// An operator on a thread without LMS is not seen, nor one of an extension that
// draws without saying so. If one draws meanwhile, the numbers are drawn anew.

// The random numbers that an operator draws, from `begin` to `end`.
struct Drawn {
  uint64_t seed;
  uint64_t begin; // offset
  uint64_t end;
};

// The state of the device's default generator, as if nothing was drawn yet.
Drawn begin_drawing(c10::DeviceIndex device);
// What was drawn since. None if other threads may have drawn, too.
std::optional<Drawn> end_drawing(const Drawn& begun, c10::DeviceIndex device);

bool is_random(const c10::OperatorHandle& op);

// While one lives, the calling thread runs an operator, which may draw.
class DrawScope {
 public:
  explicit DrawScope(bool is_random);
  DrawScope(const DrawScope&) = delete;
  DrawScope& operator=(const DrawScope&) = delete;
  ~DrawScope();

 private:
  const bool is_counted_;
};

// While one lives, the calling thread draws again what was drawn once. Throws
// c10::OutOfMemoryError if another thread draws and does not end.
class DrawAgainScope {
 public:
  DrawAgainScope(c10::DeviceIndex device, const Drawn& drawn);
  DrawAgainScope(const DrawAgainScope&) = delete;
  DrawAgainScope& operator=(const DrawAgainScope&) = delete;
  ~DrawAgainScope();

  // Nobody else has drawn meanwhile.
  bool is_the_same() const;

 private:
  const c10::DeviceIndex device_;
  const Drawn drawn_;
  c10::intrusive_ptr<c10::GeneratorImpl> before_;
};

// The calling thread is in a DrawAgainScope.
bool draws_again();

} // namespace at::cuda::lms
