#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <optional>

namespace at::cuda::lms {

// Note [Loading to the host]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~
// The weights of a model that does not fit would cross the link twice: to the
// device, and back when the next ones need the memory. So once the device has
// no free memory for a tensor, its storage begins where it would end: without
// device memory, its bytes in LMS's host memory (and from there on disk, as the
// disk's own rule has it). It comes to the device when an operator needs it,
// like any page.
//
// Nobody knows of the storage while its bytes are copied, so no mutex is held
// for that.

// A tensor on the device with the bytes, sizes and strides of one of the host's
// that lies in memory without gaps and overlaps. Nothing, if its bytes can go
// to the device without anything paged out for them, the host has no memory
// either, or LMS would not manage it: then it is made on the device as ever.
std::optional<at::Tensor> load_to_host(
    const at::Tensor& source,
    c10::DeviceIndex index);

// Note [Moving to another device]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A job that goes on another device (torch.cuda.lms.jobs) takes its storages
// with it. What has left the first device lies in LMS's host memory, which all
// devices share, so its new storage begins with that copy. What is still there
// leaves as it would have sooner or later, since other jobs run there now.
//
// The old storage has no bytes then. So that happens only where nobody but the
// caller has it, and no dropped page is made from it; else the caller copies.

// A storage on the device with the bytes of another device's, as a tensor of
// bytes. `references`: those to the old storage that the caller knows of.
// Nothing, if the bytes cannot go by way of LMS's host memory.
std::optional<at::Tensor> move_to_device(
    const c10::Storage& storage,
    int64_t references,
    c10::DeviceIndex index);

} // namespace at::cuda::lms
