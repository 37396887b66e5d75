// The driver's virtual memory: address space is reserved, pieces of device
// memory are made, and pieces are mapped into the address space. PyTorch's
// expandable segments are made of it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace simcuda {

// nullptr when there is no address space left.
void* reserve_addresses(size_t bytes);
// False when it is not what was reserved, or something is mapped there.
bool free_addresses(void* address, size_t bytes);

// Device memory that has no address yet; 0 when the device has too little left.
uint64_t create_piece(int device, size_t bytes);
// Gives the memory back, at once or when it is unmapped.
bool release_piece(uint64_t piece);

// Maps the whole of a piece, which may be mapped once, to reserved addresses.
bool map_piece(void* address, size_t bytes, uint64_t piece);
// Unmaps all pieces of a range, which must begin and end with pieces. The
// caller has waited for the device's work.
bool unmap_pieces(void* address, size_t bytes);

}  // namespace simcuda
