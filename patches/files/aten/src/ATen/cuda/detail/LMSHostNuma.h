#pragma once

#include <string>

namespace at::cuda::lms {

// The machine's NUMA nodes, as Linux tells of them. This file includes no
// PyTorch.

constexpr int kAnyNode = -1; // it does not matter, or is not known

// The node nearest to a PCI device ("0000:3B:00.0"); kAnyNode on a machine with
// one node, or if the machine does not say. `sysfs` is where it says it.
int nearest_node(std::string pci_bus_id, const std::string& sysfs = "/sys");

// What the calling thread allocates from the kernel from now on comes from that
// node as long as it has memory. Does nothing for kAnyNode, and where the
// process may not ask for it.
void prefer_node(int node);

} // namespace at::cuda::lms
