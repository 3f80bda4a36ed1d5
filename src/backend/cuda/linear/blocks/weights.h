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
  // Products of many rows are the multiplier's, with weights expanded to the compute dtype, a panel
  // of rows at a time. A panel takes this much: the largest matrix of a block of GPT-J in bf16.
  static constexpr int64_t kPanelBytes = int64_t{128} << 20;
  BlockMultiplier(std::shared_ptr<Context> context, Multiplier& multiplier,
                  int64_t panel_bytes = kPanelBytes)
      : context_(std::move(context)), multiplier_(multiplier), panel_bytes_(panel_bytes) {}

  void run(const BlockWeights& weights, const LinearArgs& args);

 private:
  void run_part(const BlockPart& part, const LinearArgs& args);
  void run_expanded(const PackedBlocks& blocks, const BlockPart& part, const LinearArgs& args);

  std::shared_ptr<Context> context_;
  Multiplier& multiplier_;
  int64_t panel_bytes_;
  DeviceArray<std::byte> expanded_;
};

}  // namespace sluice::impl::cuda::linear
