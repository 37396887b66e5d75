#pragma once

#include <cstdint>

namespace c10::lms {

// Note [Large Model Support]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~
// Large Model Support (LMS) keeps the bytes of a CUDA storage in host memory
// while no running operator needs them. A storage it manages carries a
// `Context` as the context of its DataPtr; the record that holds the device
// memory or the host copy starts with that Context.
//
// Whether the bytes may be reached is decided by pins. While at least one pin
// is held the DataPtr has the true device address and behaves as upstream's.
// With no pin the address is null and every access check of StorageImpl is
// armed, so that code which reads an address outside an operator is noticed:
//  - compiled against these headers it calls `hold` and gets a valid address;
//  - compiled against upstream's headers it throws an error that names LMS.
//
// The functions are reached through pointers in the context, and everything in
// this header is inline, so libc10 needs no new symbol and no class changes
// its layout: these headers work with an unmodified libc10.so.
//
// Any thread may call the functions. They may block on a host mutex and on
// device memory, and throw c10::OutOfMemoryError where bytes do not fit.
struct Context {
  // Changes when the layout does: code compiled against another one then takes
  // the storage for one that it may not touch, and gets LMS's error.
  static constexpr uint64_t kMagic = 0x324d6c5372636554;

  const uint64_t magic = kMagic;

  // Gives back a pin that at::cuda::lms::PinGuard took.
  void (*unpin)(Context*) = nullptr;

  // Makes the bytes resident for the rest of the storage's life, because its
  // address has escaped to code that LMS cannot see.
  void (*hold)(Context*) = nullptr;
};

} // namespace c10::lms
