#include "virtual_memory.h"

#include <sys/mman.h>

#include <iterator>
#include <map>
#include <mutex>

#include "config.h"
#include "memory.h"

namespace simcuda {
namespace {

struct Piece {
  int device;
  size_t bytes;
  uintptr_t mapped = 0;  // where, 0: nowhere
  bool released = false;
};

struct VirtualMemory {
  std::mutex mutex;
  std::map<uintptr_t, size_t> reserved;  // bytes by address
  std::map<uint64_t, Piece> pieces;      // by handle
  std::map<uintptr_t, uint64_t> mapped;  // handle by address
  uint64_t last_handle = 0;

  bool is_reserved(uintptr_t address, size_t bytes) const {
    auto after = reserved.upper_bound(address);
    if (after == reserved.begin()) {
      return false;
    }
    --after;
    return address + bytes <= after->first + after->second;
  }

  // Whether whole pieces fill the range.
  bool is_mapped(uintptr_t address, size_t bytes) const {
    const uintptr_t end = address + bytes;
    while (address < end) {
      const auto found = mapped.find(address);
      if (found == mapped.end()) {
        return false;
      }
      address += pieces.at(found->second).bytes;
    }
    return address == end;
  }

  bool has_mapped(uintptr_t address, size_t bytes) const {
    const auto after = mapped.lower_bound(address + bytes);
    if (after == mapped.begin()) {
      return false;
    }
    const auto& [start, handle] = *std::prev(after);
    return start + pieces.at(handle).bytes > address;
  }

  void drop_if_unused(uint64_t handle) {
    const Piece& piece = pieces.at(handle);
    if (piece.released && piece.mapped == 0) {
      give_back_memory(piece.device, piece.bytes);
      pieces.erase(handle);
    }
  }
};

VirtualMemory& all() {
  static auto* v = new VirtualMemory;
  return *v;
}

// Gives the addresses memory, or takes it away.
bool set_memory(void* address, size_t bytes, bool usable) {
  const int access = usable ? PROT_READ | PROT_WRITE : PROT_NONE;
  return mmap(address, bytes, access,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
              0) != MAP_FAILED;
}

}  // namespace

void* reserve_addresses(size_t bytes) {
  void* address = mmap(nullptr, bytes, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    return nullptr;
  }
  std::lock_guard<std::mutex> lock(all().mutex);
  all().reserved[number(address)] = bytes;
  return address;
}

bool free_addresses(void* address, size_t bytes) {
  std::lock_guard<std::mutex> lock(all().mutex);
  const auto found = all().reserved.find(number(address));
  if (found == all().reserved.end() || found->second != bytes ||
      all().has_mapped(number(address), bytes)) {
    return false;
  }
  all().reserved.erase(found);
  return munmap(address, bytes) == 0;
}

uint64_t create_piece(int device, size_t bytes) {
  if (!take_memory(device, bytes)) {
    return 0;
  }
  std::lock_guard<std::mutex> lock(all().mutex);
  const uint64_t handle = ++all().last_handle;
  all().pieces.emplace(handle, Piece{device, bytes});
  return handle;
}

bool release_piece(uint64_t handle) {
  std::lock_guard<std::mutex> lock(all().mutex);
  const auto found = all().pieces.find(handle);
  if (found == all().pieces.end() || found->second.released) {
    return false;
  }
  found->second.released = true;
  all().drop_if_unused(handle);
  return true;
}

bool map_piece(void* address, size_t bytes, uint64_t handle) {
  std::lock_guard<std::mutex> lock(all().mutex);
  const auto found = all().pieces.find(handle);
  if (found == all().pieces.end() || found->second.bytes != bytes ||
      found->second.mapped != 0 || !all().is_reserved(number(address), bytes) ||
      all().has_mapped(number(address), bytes)) {
    return false;
  }
  if (!timed() && !set_memory(address, bytes, true)) {
    return false;
  }
  if (config().poison > 0) {
    fill_pattern(address, bytes, kFresh);
  }
  found->second.mapped = number(address);
  all().mapped[number(address)] = handle;
  add_mapped(found->second.device, address, bytes);
  return true;
}

bool unmap_pieces(void* address, size_t bytes) {
  std::lock_guard<std::mutex> lock(all().mutex);
  const uintptr_t begin = number(address);
  if (!all().is_mapped(begin, bytes)) {
    return false;
  }
  for (uintptr_t at = begin; at < begin + bytes;) {
    const uint64_t handle = all().mapped.at(at);
    Piece& piece = all().pieces.at(handle);
    const size_t size = piece.bytes;
    remove_mapped(reinterpret_cast<void*>(at));
    all().mapped.erase(at);
    piece.mapped = 0;
    all().drop_if_unused(handle);
    at += size;
  }
  // On a card too, touching what is not mapped ends the program.
  return timed() || set_memory(address, bytes, false);
}

}  // namespace simcuda
