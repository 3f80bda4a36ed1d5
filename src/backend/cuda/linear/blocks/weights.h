// Matrices whose rows stay in the blocks that their file has them in, and products with them.

#pragma once

#include <variant>
#include <vector>

#include "backend/cuda/linear/blocks/kernels.h"
#include "backend/cuda/linear/linear.h"

namespace sluice::impl::cuda::linear {

// Rows of one block type, in chunks.
struct PackedBlocks {
  ChunksView view;
  DeviceArray<std::byte> memory;
};

// Neighbouring rows of a stack that are stored alike: in chunks, or in the compute dtype where they
// are in no blocks.
struct BlockPart {
  int64_t begin, n_rows;
  std::variant<PackedBlocks, DeviceMatrix> matrix;
  DeviceBias bias;
};

struct BlockWeights final : LinearWeights {
  BlockWeights(int64_t n_out, int64_t n_in, std::vector<BlockPart> its_parts);
  std::vector<BlockPart> parts;
};

// Null where no row of the source is in blocks that can be multiplied as they are. Done when it
// returns, as pack_matrix is.
std::unique_ptr<BlockWeights> pack_blocks(const std::shared_ptr<Context>& context,
                                          const MatrixSource& source, DType dtype);

class BlockMultiplier {
 public:
  // Products of many rows are the multiplier's, with rows expanded to the compute dtype.
  BlockMultiplier(std::shared_ptr<Context> context, Multiplier& multiplier)
      : context_(std::move(context)), multiplier_(multiplier) {}

  void run(const BlockWeights& weights, const LinearArgs& args);

 private:
  void run_part(const BlockPart& part, const LinearArgs& args);
  void run_expanded(const PackedBlocks& blocks, const BlockPart& part, const LinearArgs& args);

  std::shared_ptr<Context> context_;
  Multiplier& multiplier_;
  DeviceArray<std::byte> expanded_;  // a panel of rows, of one matrix at a time
};

}  // namespace sluice::impl::cuda::linear
