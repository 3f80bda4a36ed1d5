// Rows of blocks as files have them -> chunks (chunk.h), on the host.

#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace sluice::impl::cuda::linear {

// Whether rows of this type and width can be packed into chunks.
bool packs_into_chunks(DType dtype, int64_t n_in);
// Chunks of a tile, and bytes of a chunk.
int64_t chunks_of(DType dtype, int64_t n_in);
int64_t chunk_bytes(DType dtype);

// rows: where each of 16 rows begins (any alignment), or null for a row of zeros. to: the chunks of
// the tile, chunks_of * chunk_bytes.
void repack_tile(DType dtype, const std::byte* const (&rows)[16], int64_t n_in, std::byte* to);

}  // namespace sluice::impl::cuda::linear
