#include <ATen/cuda/detail/LMSHostLimit.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

namespace at::cuda::lms {
namespace {

constexpr size_t kAny = std::numeric_limits<size_t>::max(); // no limit

// The names of a version's files.
struct Version {
  const char* type; // of the file system
  std::vector<const char*> limits;
  const char* used;
  const char* unused_files; // a line of memory.stat
};
const Version& version(int number) {
  static const Version first{
      "cgroup",
      {"memory.limit_in_bytes"},
      "memory.usage_in_bytes",
      "total_inactive_file"};
  // Beyond memory.high a group is slowed down until it hardly runs.
  static const Version second{
      "cgroup2",
      {"memory.max", "memory.high"},
      "memory.current",
      "inactive_file"};
  return number == 1 ? first : second;
}

// The number behind a name in a file of names and numbers, each on its line;
// `otherwise` if there is none.
size_t named(
    const std::string& file,
    const std::string& wanted,
    size_t otherwise) {
  std::ifstream lines(file);
  std::string name, rest;
  size_t number = 0;
  while (lines >> name >> number) {
    if (name == wanted) {
      return number;
    }
    std::getline(lines, rest);
  }
  return otherwise;
}

// What a file of one number says; `otherwise` if it has none, as with "max".
size_t number_in(const std::string& file, size_t otherwise) {
  size_t number = 0;
  return std::ifstream(file) >> number ? number : otherwise;
}

size_t meminfo(const std::string& root, const char* name) {
  // No /proc: a guess that fits any training host.
  constexpr size_t kGuess = size_t{10} << 20; // KiB
  return named(root + "/proc/meminfo", name, kGuess) * 1024;
}

// Whether a list such as "cpu,memory" has an item.
bool has(const std::string& list, const std::string& wanted) {
  std::istringstream items(list);
  std::string item;
  while (std::getline(items, item, ',')) {
    if (item == wanted) {
      return true;
    }
  }
  return false;
}

// The path of the process's group that limits its memory, from the root of its
// version's tree; empty if there is none.
std::string group_of(const std::string& root, int number) {
  std::ifstream lines(root + "/proc/self/cgroup");
  std::string id, controllers, path;
  while (std::getline(lines, id, ':') &&
         std::getline(lines, controllers, ':') && std::getline(lines, path)) {
    if (number == 2 ? controllers.empty() : has(controllers, "memory")) {
      return path;
    }
  }
  return {};
}

// A path as mountinfo has it, where \040 stands for a space.
std::string unescaped(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      plain += static_cast<char>(std::stoi(text.substr(i + 1, 3), nullptr, 8));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

struct Mount {
  std::string shown; // the path of the group at its root
  std::string point;
};

// Where a version's groups that limit memory are mounted.
std::vector<Mount> mounts_of(const std::string& root, int number) {
  std::vector<Mount> mounts;
  std::ifstream lines(root + "/proc/self/mountinfo");
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string id, parent, device, shown, point, word, type, source, options;
    words >> id >> parent >> device >> shown >> point;
    while (words >> word && word != "-") { // how many come before is not fixed
    }
    words >> type >> source >> options;
    if (type == version(number).type &&
        (number == 2 || has(options, "memory"))) {
      mounts.push_back({unescaped(shown), unescaped(point)});
    }
  }
  return mounts;
}

// `path` as seen below `above`, such as "/b" for "/a/b" below "/a"; false if it
// is not there.
bool find_below(
    const std::string& above,
    const std::string& path,
    std::string& below) {
  const std::string start = above == "/" ? "" : above;
  if (path.compare(0, start.size(), start) != 0) {
    return false;
  }
  below = path.substr(start.size());
  return below.empty() || below[0] == '/';
}

// What one group allows, when the processes have taken so much already.
size_t allowed_by(const std::string& folder, int number, size_t taken) {
  const Version& names = version(number);
  size_t limit = kAny;
  for (const char* name : names.limits) {
    limit = std::min(limit, number_in(folder + "/" + name, kAny));
  }
  if (limit == kAny) {
    return kAny;
  }
  const size_t all = number_in(folder + "/" + names.used, 0);
  const size_t files = named(folder + "/memory.stat", names.unused_files, 0);
  const size_t used = all - std::min(all, files);
  const size_t left = limit - std::min(limit, used);
  return left + std::min(taken, limit - left);
}

// What the process's groups of one version allow together.
size_t allowed_by_all(const std::string& root, int number, size_t taken) {
  const std::string group = group_of(root, number);
  size_t allowed = kAny;
  if (group.empty()) {
    return allowed;
  }
  for (const Mount& mount : mounts_of(root, number)) {
    std::string below;
    if (!find_below(mount.shown, group, below)) {
      below.clear(); // moved elsewhere since: what is mounted is all there is
    }
    const std::string point = root + (mount.point == "/" ? "" : mount.point);
    while (true) {
      allowed = std::min(allowed, allowed_by(point + below, number, taken));
      const size_t slash = below.rfind('/');
      if (slash == std::string::npos) {
        break;
      }
      below.resize(slash);
    }
  }
  return allowed;
}

} // namespace

size_t default_host_limit(size_t taken, const std::string& root) {
  const size_t available = meminfo(root, "MemAvailable:");
  const size_t total = meminfo(root, "MemTotal:");
  size_t all = std::min(available + taken, total);
  for (const int number : {1, 2}) {
    all = std::min(all, allowed_by_all(root, number, taken));
  }
  return std::max(all / 10 * 8, size_t{1}); // 0 would mean: not known yet
}

} // namespace at::cuda::lms
