#include "backend/cuda/linear/blocks/weights.h"

#include <algorithm>

#include "backend/cuda/linear/blocks/repack.h"
#include "backend/cuda/linear/pack.h"
#include "core/threads.h"

namespace sluice::impl::cuda::linear {
namespace {

constexpr int64_t kTileRows = 16;
constexpr int64_t kPanelUnit = 256;  // rows, so that products of panels fill their tiles

// Neighbouring rows of the source that are packed together.
struct Run {
  int64_t begin, end;
  DType dtype;
  bool blocks;
};

std::vector<Run> runs_of(const MatrixSource& source) {
  std::vector<Run> runs;
  int64_t end = 0;
  for (const StoredRows& rows : source.stored) {
    SLUICE_CHECK(rows.begin == end && rows.end >= rows.begin);
    end = rows.end;
    if (rows.begin == rows.end) continue;
    const bool blocks = packs_into_chunks(rows.dtype, source.n_in);
    if (!runs.empty() && runs.back().blocks == blocks &&
        (!blocks || runs.back().dtype == rows.dtype))
      runs.back().end = rows.end;
    else
      runs.push_back({rows.begin, rows.end, rows.dtype, blocks});
  }
  SLUICE_CHECK(source.stored.empty() || end == source.n_out);
  return runs;
}

const std::byte* row_at(const MatrixSource& source, int64_t row, int64_t row_bytes) {
  for (const StoredRows& rows : source.stored)
    if (row < rows.end) return rows.bytes + (row - rows.begin) * row_bytes;
  return nullptr;
}

PackedBlocks pack_run(const std::shared_ptr<Context>& context, const MatrixSource& source,
                      const Run& run) {
  const BlockSize block = block_size(run.dtype);
  const int64_t row_bytes = source.n_in / block.elements * block.bytes;
  const int64_t n_rows = run.end - run.begin, n_tiles = ceil_div(n_rows, kTileRows);
  const int64_t n_chunks = chunks_of(run.dtype, source.n_in);
  const int64_t tile_bytes = checked_mul(n_chunks, chunk_bytes(run.dtype));
  PackedBlocks packed{.view = {run.dtype, nullptr, n_rows, source.n_in, n_chunks},
                      .memory = DeviceArray<std::byte>(context, checked_mul(n_tiles, tile_bytes))};
  packed.view.chunks = packed.memory.data();
  const int64_t n = std::clamp<int64_t>(kPieceBytes / tile_bytes, 1, n_tiles);
  PinnedPiece pieces[2] = {PinnedPiece(n * tile_bytes), PinnedPiece(n * tile_bytes)};
  for (int64_t first = 0, i = 0; first < n_tiles; first += n, ++i) {
    const PinnedPiece& piece = pieces[i % 2];
    const int64_t count = std::min(n, n_tiles - first);
    check(cudaEventSynchronize(piece.sent.get()), "copy to the device");
    parallel_each(count, [&](int64_t index) {
      const std::byte* rows[kTileRows] = {};
      const int64_t row = (first + index) * kTileRows;
      for (int64_t r = 0; r < std::min(kTileRows, n_rows - row); ++r)
        rows[r] = row_at(source, run.begin + row + r, row_bytes);
      repack_tile(run.dtype, rows, source.n_in, piece.host.data() + index * tile_bytes);
    });
    check(cudaMemcpyAsync(packed.memory.data() + first * tile_bytes, piece.host.data(),
                          static_cast<size_t>(count * tile_bytes), cudaMemcpyHostToDevice,
                          context->stream()),
          "copy to the device");
    check(cudaEventRecord(piece.sent.get(), context->stream()), "copy to the device");
  }
  context->synchronize();
  return packed;
}

// Rows [begin, end) as a source of their own; lives as long as the whole does.
MatrixSource rows_of(const MatrixSource& source, int64_t begin, int64_t end) {
  MatrixSource rows;
  rows.n_out = end - begin;
  rows.n_in = source.n_in;
  rows.read_rows = [&source, begin](int64_t first, int64_t last, float* out) {
    source.read_rows(begin + first, begin + last, out);
  };
  return rows;
}

int64_t bytes_of(const std::vector<BlockPart>& parts) {
  int64_t bytes = 0;
  for (const BlockPart& part : parts)
    bytes += std::visit([](const auto& matrix) { return matrix.memory.size(); }, part.matrix);
  return bytes;
}

}  // namespace

BlockWeights::BlockWeights(int64_t n_out, int64_t n_in, std::vector<BlockPart> its_parts)
    : LinearWeights(n_out, n_in, bytes_of(its_parts)), parts(std::move(its_parts)) {}

std::unique_ptr<BlockWeights> pack_blocks(const std::shared_ptr<Context>& context,
                                          const MatrixSource& source, DType dtype) {
  const std::vector<Run> runs = runs_of(source);
  if (std::none_of(runs.begin(), runs.end(), [](const Run& run) { return run.blocks; }))
    return nullptr;
  std::vector<BlockPart> parts;
  for (const Run& run : runs) {
    std::vector<float> bias;
    if (!source.bias.empty())
      bias.assign(source.bias.begin() + run.begin, source.bias.begin() + run.end);
    BlockPart part{.begin = run.begin,
                   .n_rows = run.end - run.begin,
                   .matrix = {},
                   .bias = DeviceBias(context, bias)};
    if (run.blocks)
      part.matrix = pack_run(context, source, run);
    else
      part.matrix = pack_matrix(context, rows_of(source, run.begin, run.end), dtype);
    parts.push_back(std::move(part));
  }
  return std::make_unique<BlockWeights>(source.n_out, source.n_in, std::move(parts));
}

void BlockMultiplier::run(const BlockWeights& weights, const LinearArgs& args) {
  if (args.x.rows() == 0) return;
  LinearArgs part_args = args;
  part_args.x = multiplier_.aligned(args.x);
  for (const BlockPart& part : weights.parts) {
    part_args.out = args.out.columns_from(part.begin, part.n_rows);
    run_part(part, part_args);
  }
}

void BlockMultiplier::run_part(const BlockPart& part, const LinearArgs& args) {
  if (const auto* plain = std::get_if<DeviceMatrix>(&part.matrix))
    return multiplier_.run(*plain, part.bias, args);
  const auto& blocks = std::get<PackedBlocks>(part.matrix);
  if (args.x.dtype() != DType::kBF16 || args.x.rows() > kFewBlockRows)
    return run_expanded(blocks, part, args);
  multiply_few_rows(*context_, {.weights = blocks.view,
                                .x = args.x,
                                .bias = part.bias.values.data(),
                                .activation = args.activation,
                                .accumulate = args.accumulate,
                                .out = args.out});
}

// A kernel that reads weights before those ahead of it have ended would read what is not there yet:
// only cuBLASLt multiplies expanded rows, since one row of bf16 does not get here.
void BlockMultiplier::run_expanded(const PackedBlocks& blocks, const BlockPart& part,
                                   const LinearArgs& args) {
  const DType dtype = args.x.dtype();
  const int64_t row_bytes = checked_mul(blocks.view.n_in, element_bytes(dtype));
  const int64_t panel = std::min(
      part.n_rows, std::max(kPanelUnit, panel_bytes_ / row_bytes / kPanelUnit * kPanelUnit));
  expanded_.reserve(context_, checked_mul(panel, row_bytes));
  LinearArgs panel_args = args;
  for (int64_t first = 0; first < part.n_rows; first += panel) {
    const int64_t n = std::min(panel, part.n_rows - first);
    const Tensor rows(expanded_.data(), dtype, {n, blocks.view.n_in}, Device::kCuda);
    expand_rows(*context_, blocks.view, first, rows);
    panel_args.out = args.out.columns_from(first, n);
    multiplier_.run(rows, part.bias.view().from(first), panel_args);
  }
}

}  // namespace sluice::impl::cuda::linear
