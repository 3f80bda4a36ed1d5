#include "backend/cuda/linear/blocks/few_rows.cuh"
#include "backend/cuda/linear/blocks/kernels.h"
#include "backend/cuda/linear/blocks/repack.h"

namespace sluice::impl::cuda::linear {

void multiply_few_rows(Context& context, const FewBlockRowsArgs& args) {
  const ChunksView& weights = args.weights;
  SLUICE_CHECK(args.x.rows() > 0 && args.x.rows() <= kFewBlockRows);
  SLUICE_CHECK(args.x.dtype() == DType::kBF16 && args.x.row_elements() == weights.n_in);
  SLUICE_CHECK(weights.n_in <= INT32_MAX - kPieceDepth);
  const BlockProduct product{.chunks = weights.chunks,
                             .n_tiles = ceil_div(weights.n_rows, kTileHeight),
                             .tile_bytes = weights.n_chunks * chunk_bytes(weights.dtype),
                             .n_out = weights.n_rows,
                             .n_pieces = static_cast<int>(ceil_div(weights.n_in, kPieceDepth)),
                             .depth = static_cast<int>(weights.n_in),
                             .x = args.x.bytes(),
                             .x_stride = args.x.row_stride(),
                             .n_rows = static_cast<int>(args.x.rows()),
                             .bias = args.bias,
                             .activation = args.activation,
                             .accumulate = args.accumulate,
                             .out = view_of(args.out)};
  const bool large = block_size(weights.dtype).elements == kPieceDepth;
  (large ? multiply_large_blocks : multiply_small_blocks)(context, weights.dtype, product);
}

}  // namespace sluice::impl::cuda::linear
