#include "backend/cuda/linear/blocks/few_rows.cuh"

namespace sluice::impl::cuda::linear {

void multiply_small_blocks(Context& context, DType dtype, const BlockProduct& product) {
  with_block_type(dtype, [&]<DType kType>() {
    if constexpr (!ChunkFormat<kType>::kLarge) multiply_by_rows<kType>(context, product);
  });
}

}  // namespace sluice::impl::cuda::linear
