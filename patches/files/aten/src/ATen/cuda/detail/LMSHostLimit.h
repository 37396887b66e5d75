#pragma once

#include <cstddef>
#include <string>

namespace at::cuda::lms {

// Note [What the host has for LMS]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// By default LMS takes 80 % of what the kernel could hand out without swapping,
// or of what the process's control groups leave it, if that is less: a
// container may have a small part of the host, and the kernel ends whoever
// takes more. The rest is for what the program itself still grows by. A group's
// limit holds for all groups below it, so every one up to the root of what the
// process can see counts. Of what a group has in use, files that nobody has
// read lately are not counted: the kernel drops them when memory runs short.
//
// Control groups come in two versions, which a host can use side by side. Where
// they are mounted, and what a mount shows as its root, the kernel says in
// /proc/self/mountinfo: a container often sees its own group there alone.

// The default limit of host memory in bytes, never 0, of which the processes of
// the user have `taken` so many already. `root` is put before the paths of what
// the system says. This file includes no PyTorch.
size_t default_host_limit(size_t taken, const std::string& root = "");

} // namespace at::cuda::lms
