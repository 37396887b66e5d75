#include <ATen/cuda/detail/LMSHostNuma.h>

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <climits>
#include <fstream>

namespace at::cuda::lms {
namespace {

constexpr int kMaxNodes = 1024; // as many as kernels are built for

// "0" on a machine with one node, else a list such as "0-1,4".
bool has_several_nodes(const std::string& sysfs) {
  std::string online;
  std::ifstream(sysfs + "/devices/system/node/online") >> online;
  return online.find_first_of("-,") != std::string::npos;
}

} // namespace

int nearest_node(std::string pci_bus_id, const std::string& sysfs) {
  if (!has_several_nodes(sysfs)) {
    return kAnyNode;
  }
  // CUDA writes the number in capitals, the kernel does not.
  for (char& c : pci_bus_id) {
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  int node = kAnyNode;
  std::ifstream file(sysfs + "/bus/pci/devices/" + pci_bus_id + "/numa_node");
  return file >> node && node >= 0 && node < kMaxNodes ? node : kAnyNode;
}

void prefer_node(int node) {
  if (node < 0 || node >= kMaxNodes) {
    return;
  }
  constexpr int kBits = sizeof(unsigned long) * CHAR_BIT;
  std::array<unsigned long, kMaxNodes / kBits> mask{};
  mask.at(node / kBits) = 1UL << (node % kBits);
  // Refused in some containers; the memory then comes from anywhere. The kernel
  // reads one bit less than it is told.
  (void)syscall(
      SYS_set_mempolicy, MPOL_PREFERRED, mask.data(), kMaxNodes + 1UL);
}

} // namespace at::cuda::lms
