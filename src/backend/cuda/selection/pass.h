// What a pass of the selector works with.

#pragma once

#include "backend/cuda/selection/selector.h"

namespace sluice::impl::cuda::selection {

// Lives in the context's scratch memory, which nobody else asks for during a pass.
struct CudaSelector::Pass {
  ConstTensor rows;
  int64_t chunk, splits, tiles;  // tokens at a time; of the columns; room for tiles of them
  ConstTensor residual;
  double *inverse, *residual_inverse;  // (rows); the second nullptr without outliers
  uint8_t* exempt;                     // (rows)
  const uint8_t* inherited;            // (n_sets, rows)
  uint8_t* inherited_flags;            // the same, where they must be put together

  // Of a chunk: ChunkView and CoverView have the shapes.
  uint16_t* prepared;
  float* scale;
  double* prepared_inverse;
  uint8_t *chunk_inherited, *decision;
  float* local;
  Largest* largest;
  uint32_t *conflicts, *sure;

  // The same for cascade-cover.
  ListedTokens lists[2];
  uint16_t* listed;
  float* listed_scale;
  uint2* bits;
  uint32_t* some;
  int64_t words;
  uint8_t* levels;
  OddRows odd;
  int32_t* tickets;
  unsigned long long* marks;
  int64_t mark_tiles;
  float4* parts;

  // In a basis: BasisView has the shapes.
  uint16_t *coordinates, *listed_coordinates;
  float *rest, *listed_rest;
  int32_t *open, *below, *again;
};

// What a bf16 product of unit rows may err by, as a cosine.
double product_error(int64_t padded, bool bf16);

}  // namespace sluice::impl::cuda::selection
