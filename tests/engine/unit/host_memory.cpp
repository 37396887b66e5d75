// Unit tests of what host memory is made of: free ranges, and what the system
// says of its memory and of NUMA nodes.

#include <ATen/cuda/detail/LMSHostLimit.h>
#include <ATen/cuda/detail/LMSHostRanges.h>
#include <ATen/cuda/detail/LMSHostNuma.h>

#include "temporary.h"

#include <gtest/gtest.h>

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

using namespace at::cuda::lms;

namespace {

void write(const std::string& file, const std::string& text) {
  std::filesystem::create_directories(
      std::filesystem::path(file).parent_path());
  std::ofstream(file) << text << '\n';
}

// --- free ranges ---

// A range of so many bytes; null if there is none.
char* take(HostRanges& ranges, size_t bytes) {
  const HostPieces pieces = ranges.take(bytes);
  return pieces.size() == 1 ? pieces[0].begin : nullptr;
}

TEST(HostMemory, the_best_fit_is_taken) {
  std::vector<char> memory(1000);
  HostRanges ranges;
  ranges.add_slab(memory.data(), 1000);
  char* hundred = take(ranges, 100);
  char* wall = take(ranges, 10);
  EXPECT_TRUE(hundred == memory.data() && wall == hundred + 100);
  ranges.give_back({hundred, 100});
  EXPECT_TRUE(take(ranges, 90) == hundred);
  EXPECT_TRUE(take(ranges, 900) == nullptr);
  EXPECT_TRUE(take(ranges, 890) == memory.data() + 110);
  EXPECT_TRUE(take(ranges, 11) == nullptr);
  EXPECT_TRUE(take(ranges, 10) == hundred + 90);
  EXPECT_TRUE(ranges.room() == 0);
}

TEST(HostMemory, of_ranges_of_one_size_that_of_the_older_slab_is_taken) {
  std::vector<char> memory(300);
  char* begin = memory.data();
  HostRanges ranges;
  for (size_t at : {200, 0, 100}) { // the system's addresses
    ranges.add_slab(begin + at, 100);
  }
  EXPECT_TRUE(take(ranges, 100) == begin + 200);
  EXPECT_TRUE(take(ranges, 100) == begin);
  ranges.give_back({begin + 200, 100});
  EXPECT_TRUE(take(ranges, 50) == begin + 200);
  EXPECT_TRUE(take(ranges, 60) == begin + 100);
}

TEST(HostMemory, neighbours_of_a_slab_join_and_slabs_do_not) {
  std::vector<char> memory(300);
  char* begin = memory.data();
  HostRanges ranges;
  ranges.add_slab(begin, 100);
  ranges.add_slab(begin + 100, 200); // right behind the first one
  EXPECT_TRUE(take(ranges, 250) == nullptr);
  EXPECT_TRUE(take(ranges, 100) == begin);
  std::vector<char*> parts;
  for (int i = 0; i < 4; ++i) {
    parts.push_back(take(ranges, 50));
  }
  EXPECT_TRUE(ranges.room() == 0);
  for (int i : {2, 0, 3, 1}) {
    ranges.give_back({parts[i], 50});
  }
  ranges.give_back({begin, 100});
  EXPECT_TRUE(ranges.room() == 200);
  EXPECT_TRUE(take(ranges, 201) == nullptr && take(ranges, 200) == begin + 100);
}

TEST(HostMemory, a_slab_is_removed_only_when_all_of_it_is_free) {
  std::vector<char> memory(200);
  HostRanges ranges;
  ranges.add_slab(memory.data(), 200);
  char* part = take(ranges, 50);
  EXPECT_TRUE(!ranges.remove_slab(memory.data()));
  EXPECT_TRUE(!ranges.remove_slab(memory.data() + 50));
  char* rest = take(ranges, 150);
  ranges.give_back({part, 50});
  EXPECT_TRUE(!ranges.remove_slab(memory.data()));
  ranges.give_back({rest, 150});
  EXPECT_TRUE(ranges.remove_slab(memory.data()));
  EXPECT_TRUE(ranges.room() == 0 && take(ranges, 1) == nullptr);
}

TEST(HostMemory, what_no_range_has_room_for_lies_in_pieces) {
  constexpr size_t kLeast = HostRanges::kLeastPiece;
  char* begin = reinterpret_cast<char*>(kLeast); // never touched
  HostRanges ranges;
  ranges.add_slab(begin, 10 * kLeast);
  ranges.add_slab(begin + 10 * kLeast, 2 * kLeast);
  ranges.add_slab(begin + 12 * kLeast, kLeast - 1); // too small for a piece
  EXPECT_TRUE(ranges.room() == 12 * kLeast);
  EXPECT_TRUE(ranges.take(12 * kLeast + 1).empty());
  const HostPieces pieces = ranges.take(11 * kLeast);
  EXPECT_TRUE(pieces.size() == 2);
  EXPECT_TRUE(pieces[0].begin == begin && pieces[0].bytes == 10 * kLeast);
  EXPECT_TRUE(
      pieces[1].begin == begin + 10 * kLeast && pieces[1].bytes == kLeast);
  EXPECT_TRUE(ranges.room() == kLeast);
  for (const HostRange& piece : pieces) {
    ranges.give_back(piece);
  }
  EXPECT_TRUE(ranges.room() == 12 * kLeast);
  EXPECT_TRUE(ranges.remove_slab(begin) && ranges.room() == 2 * kLeast);
}

TEST(HostMemory, there_are_not_many_pieces) {
  constexpr size_t kLeast = HostRanges::kLeastPiece;
  HostRanges ranges;
  for (size_t i = 1; i <= HostRanges::kMostPieces + 1; ++i) {
    ranges.add_slab(reinterpret_cast<char*>(i * kLeast), kLeast);
  }
  EXPECT_TRUE(ranges.room() == HostRanges::kMostPieces * kLeast);
  EXPECT_TRUE(ranges.take(ranges.room() + 1).empty());
  EXPECT_TRUE(ranges.take(ranges.room()).size() == HostRanges::kMostPieces);
  EXPECT_TRUE(take(ranges, kLeast) != nullptr && ranges.room() == 0);
}

// --- the default limit ---

constexpr size_t kMib = size_t{1} << 20;

// What the system says of its memory, in a folder that no other test uses:
// 10000 MiB, of which 8000 are available, and no control groups.
std::string fresh_system() {
  static int count = 0;
  const std::string root =
      temporary_folder() + "/system" + std::to_string(++count);
  write(
      root + "/proc/meminfo",
      "MemTotal:       10240000 kB\n"
      "MemFree:         1000000 kB\n"
      "MemAvailable:    8192000 kB");
  return root;
}

// A folder of a group, with what it limits and uses, MiB.
void write_first_version(const std::string& group, size_t limit, size_t used) {
  write(group + "/memory.limit_in_bytes", std::to_string(limit * kMib));
  write(group + "/memory.usage_in_bytes", std::to_string(used * kMib));
}
void write_second_version(
    const std::string& group,
    const std::string& limit,
    size_t used) {
  write(group + "/memory.max", limit);
  write(group + "/memory.current", std::to_string(used * kMib));
}

// 80 % of so many MiB.
size_t most_of(size_t count) {
  return count * kMib / 10 * 8;
}

std::string mib(size_t count) {
  return std::to_string(count * kMib);
}

TEST(HostMemory, by_default_most_of_what_is_available_is_used) {
  const std::string root = fresh_system();
  EXPECT_TRUE(default_host_limit(0, root) == 6400 * kMib);
  EXPECT_TRUE(default_host_limit(1000 * kMib, root) == 7200 * kMib);
  EXPECT_TRUE(default_host_limit(3000 * kMib, root) == 8000 * kMib);
  EXPECT_TRUE(
      default_host_limit(0, temporary_folder() + "/nothing") ==
      (size_t{10} << 30) / 10 * 8);
}

TEST(HostMemory, a_container_of_the_second_version_limits_it) {
  const std::string root = fresh_system();
  write(root + "/proc/self/cgroup", "0::/");
  write(
      root + "/proc/self/mountinfo",
      "23 1 0:20 / / rw,relatime - ext4 /dev/root rw\n"
      "31 23 0:26 / /sys/fs/cgroup ro,nosuid shared:9 master:4 - cgroup2 cgroup rw");
  const std::string group = root + "/sys/fs/cgroup";
  EXPECT_TRUE(
      default_host_limit(0, root) == 6400 * kMib); // the host's own group
  write_second_version(group, "max", 500);
  EXPECT_TRUE(default_host_limit(0, root) == 6400 * kMib);
  write_second_version(group, mib(2000), 500);
  EXPECT_TRUE(default_host_limit(0, root) == most_of(1500));
  // What processes have taken is part of what is in use.
  EXPECT_TRUE(default_host_limit(300 * kMib, root) == most_of(1800));
  EXPECT_TRUE(default_host_limit(900 * kMib, root) == most_of(2000));
  write(
      group + "/memory.stat",
      "anon 1\ninactive_file " + mib(100) + "\nactive_file " + mib(200));
  EXPECT_TRUE(default_host_limit(0, root) == most_of(1600));
  write(group + "/memory.high", mib(1000)); // where it is slowed down
  EXPECT_TRUE(default_host_limit(0, root) == most_of(600));
  write_second_version(group, mib(2000), 3000); // lowered since
  EXPECT_TRUE(default_host_limit(0, root) == 1); // the least
  write_second_version(group, mib(50000), 3000);
  write(group + "/memory.high", "max");
  EXPECT_TRUE(default_host_limit(0, root) == 6400 * kMib);
}

TEST(HostMemory, the_limit_of_a_group_above_counts_too) {
  const std::string root = fresh_system();
  write(root + "/proc/self/cgroup", "0::/pods/pod 1/box");
  write(
      root + "/proc/self/mountinfo",
      "31 23 0:26 / /sys/fs/my\\040groups rw - cgroup2 cgroup rw");
  const std::string top = root + "/sys/fs/my groups";
  write_second_version(top + "/pods/pod 1/box", mib(3000), 0);
  EXPECT_TRUE(default_host_limit(0, root) == most_of(3000));
  write_second_version(top + "/pods", mib(5000), 4900);
  EXPECT_TRUE(default_host_limit(0, root) == most_of(100));
  write_second_version(top + "/pods/pod 1/box", "max", 0);
  EXPECT_TRUE(default_host_limit(0, root) == most_of(100));
  write_second_version(top + "/pods/pod 10", mib(1), 0); // somebody else's
  write_second_version(top, mib(60), 0);
  EXPECT_TRUE(default_host_limit(0, root) == most_of(60));
}

TEST(HostMemory, a_container_of_the_first_version_limits_it) {
  const std::string root = fresh_system();
  write(
      root + "/proc/self/cgroup",
      "9:cpu,cpuacct:/other\n4:hugetlb,memory:/docker/12ab/job\n"
      "1:name=systemd:/docker/12ab\n0::/docker/12ab");
  // A container sees its own group where the host sees all of them.
  write(
      root + "/proc/self/mountinfo",
      "33 31 0:30 /other /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct\n"
      "35 31 0:32 /docker/12ab /sys/fs/cgroup/memory ro - cgroup cgroup "
      "rw,hugetlb,memory\n"
      "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw");
  const std::string group = root + "/sys/fs/cgroup/memory";
  write(group + "/memory.limit_in_bytes", "9223372036854771712"); // none
  write(group + "/memory.usage_in_bytes", mib(1));
  EXPECT_TRUE(default_host_limit(0, root) == 6400 * kMib);
  EXPECT_TRUE(default_host_limit(900 * kMib, root) == 7120 * kMib);
  write_first_version(group, 4000, 1000);
  EXPECT_TRUE(default_host_limit(0, root) == most_of(3000));
  write(
      group + "/memory.stat",
      "inactive_file 5\ntotal_inactive_file " + mib(200));
  EXPECT_TRUE(default_host_limit(0, root) == most_of(3200));
  write_first_version(group + "/job", 2000, 1990);
  EXPECT_TRUE(default_host_limit(0, root) == most_of(10));
  write_first_version(root + "/sys/fs/cgroup/cpu/job", 1, 0); // not memory's
  EXPECT_TRUE(default_host_limit(0, root) == most_of(10));
  // A host may use both versions.
  write_second_version(root + "/sys/fs/cgroup/unified/docker/12ab", mib(7), 0);
  EXPECT_TRUE(default_host_limit(0, root) == most_of(7));
}

TEST(HostMemory, a_mount_that_does_not_show_the_group_counts_as_it_is) {
  const std::string root = fresh_system();
  write(root + "/proc/self/cgroup", "4:memory:/elsewhere");
  write(
      root + "/proc/self/mountinfo",
      "35 31 0:32 /else /memory ro - cgroup cgroup rw,memory");
  write_first_version(root + "/memory", 4000, 1000);
  write_first_version(root + "/memory/where", 1, 0);
  EXPECT_TRUE(default_host_limit(0, root) == most_of(3000));
}

// --- NUMA nodes ---

TEST(HostMemory, the_system_says_which_node_is_near) {
  const std::string sysfs = temporary_folder() + "/sys";
  const std::string device = sysfs + "/bus/pci/devices/0000:3b:00.0/numa_node";
  EXPECT_TRUE(nearest_node("0000:3B:00.0", sysfs) == kAnyNode); // no such tree
  write(sysfs + "/devices/system/node/online", "0-1");
  EXPECT_TRUE(
      nearest_node("0000:3B:00.0", sysfs) == kAnyNode); // no such device
  write(device, "1");
  EXPECT_TRUE(nearest_node("0000:3B:00.0", sysfs) == 1);
  write(device, "-1"); // it does not know
  EXPECT_TRUE(nearest_node("0000:3B:00.0", sysfs) == kAnyNode);
  write(device, "1");
  write(sysfs + "/devices/system/node/online", "0,2");
  EXPECT_TRUE(nearest_node("0000:3B:00.0", sysfs) == 1);
  write(sysfs + "/devices/system/node/online", "0"); // one node: nothing to do
  EXPECT_TRUE(nearest_node("0000:3B:00.0", sysfs) == kAnyNode);
}

int policy_of_this_thread(unsigned long& nodes) {
  int mode = -1;
  unsigned long mask[16] = {};
  if (syscall(SYS_get_mempolicy, &mode, mask, 1024UL, nullptr, 0UL) != 0) {
    return -1;
  }
  nodes = mask[0];
  return mode;
}

TEST(HostMemory, a_thread_prefers_a_node_and_others_do_not) {
  unsigned long nodes = 0;
  const int before = policy_of_this_thread(nodes);
  if (before < 0) {
    return; // the sandbox does not let anybody ask
  }
  std::thread([] {
    unsigned long own = 0;
    prefer_node(kAnyNode);
    prefer_node(1 << 20);
    EXPECT_TRUE(policy_of_this_thread(own) == MPOL_DEFAULT);
    prefer_node(0);
    const int mode = policy_of_this_thread(own);
    // Where it is forbidden nothing changes.
    EXPECT_TRUE((mode == MPOL_PREFERRED && own == 1) || mode == MPOL_DEFAULT);
  }).join();
  EXPECT_TRUE(policy_of_this_thread(nodes) == before);
}

} // namespace
