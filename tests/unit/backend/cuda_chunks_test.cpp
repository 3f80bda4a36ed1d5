// Block-quantised weights as the CUDA backend keeps them: the host writes chunks, and the functions
// that the kernels read them with run here on the host.

#include <gtest/gtest.h>

#include <cstring>

#include "backend/cuda/linear/blocks/chunk.h"
#include "backend/cuda/linear/blocks/repack.h"
#include "block_bytes.h"
#include "io/gguf_blocks.h"

namespace sluice::impl::cuda::linear {
namespace {

using test::kBlockTypes;
using test::random_blocks;

struct Case {
  int64_t n_rows, n_in;
};
// Tiles that are full and not, chunks that are full and not.
std::vector<Case> cases_of(DType dtype) {
  if (block_size(dtype).elements == 256) return {{16, 256}, {5, 512}, {9, 1280}};
  return {{16, 64}, {1, 32}, {11, 96}, {8, 288}};
}

std::vector<std::byte> repacked(DType dtype, const std::vector<std::byte>& blocks, const Case& c) {
  const int64_t row_bytes = std::ssize(blocks) / c.n_rows;
  const std::byte* rows[16] = {};
  for (int64_t row = 0; row < c.n_rows; ++row) rows[row] = blocks.data() + row * row_bytes;
  // Repacking has to write every byte.
  std::vector<std::byte> tile(static_cast<size_t>(chunks_of(dtype, c.n_in) * chunk_bytes(dtype)),
                              std::byte{0xa5});
  repack_tile(dtype, rows, c.n_in, tile.data());
  return tile;
}

// What 32 lanes read of a tile, (16, columns of its chunks).
template <DType kType>
std::vector<float> read_by_lanes(const std::vector<std::byte>& tile) {
  using Format = ChunkFormat<kType>;
  const int64_t n_chunks = std::ssize(tile) / Format::kBytes, width = n_chunks * Format::kDepth;
  std::vector<float> out(static_cast<size_t>(16 * width), NAN);
  struct alignas(16) Chunk {
    std::byte bytes[Format::kBytes];
  } aligned;
  for (int64_t chunk = 0; chunk < n_chunks; ++chunk)
    for (int lane = 0; lane < 32; ++lane)
      for (int span = 0; span < Format::kSpans; ++span) {
        std::memcpy(aligned.bytes, tile.data() + chunk * Format::kBytes, Format::kBytes);
        float values[2][2][8];
        read_values<kType>(aligned.bytes, span, lane, read_common<kType>(aligned.bytes, lane),
                           values);
        for (int i = 0; i < 32; ++i) {
          const int step = i / 16, upper = i / 8 % 2, pair = i % 8 / 2;
          const int64_t row = lane / 4 + 8 * upper;
          const int64_t column = chunk * Format::kDepth + span * kSpanDepth + step * kStepDepth +
                                 pair_column<kType>(lane % 4, pair) + i % 2;
          out[static_cast<size_t>(row * width + column)] = values[step][upper][i % 8];
        }
      }
  return out;
}

TEST(CudaChunks, LanesReadWhatBlocksExpandTo) {
  for (const DType dtype : kBlockTypes)
    for (const Case& c : cases_of(dtype)) {
      SCOPED_TRACE(testing::Message() << dtype_name(dtype) << ", " << c.n_rows << " x " << c.n_in);
      const auto blocks = random_blocks(dtype, c.n_rows, c.n_in, 17);
      std::vector<float> expected(static_cast<size_t>(c.n_rows * c.n_in));
      expand_blocks(dtype, blocks.data(), std::ssize(expected) / block_size(dtype).elements,
                    expected.data());
      const auto tile = repacked(dtype, blocks, c);
      const auto got =
          with_block_type(dtype, [&]<DType kType>() { return read_by_lanes<kType>(tile); });
      const int64_t width = std::ssize(got) / 16;
      for (int64_t row = 0; row < 16; ++row)
        for (int64_t k = 0; k < width; ++k) {
          const float value = got[static_cast<size_t>(row * width + k)];
          // Equal to the last bit, but for the sign of a zero.
          if (row < c.n_rows && k < c.n_in)
            ASSERT_EQ(value, expected[static_cast<size_t>(row * c.n_in + k)]) << row << ", " << k;
          else
            ASSERT_EQ(value, 0.0f) << row << ", " << k;
        }
    }
}

// The pairs that tensor cores multiply are whole numbers, q - zero + kOffset.
TEST(CudaChunks, PairsAreWholeNumbersOfTheirRange) {
  for (const DType dtype : kBlockTypes)
    with_block_type(dtype, [&]<DType kType>() {
      SCOPED_TRACE(std::string(dtype_name(dtype)));
      using Format = ChunkFormat<kType>;
      const auto tile = repacked(dtype, random_blocks(dtype, 16, 256, 3), {16, 256});
      std::vector<FourWords> words(tile.size() / sizeof(FourWords));
      std::memcpy(words.data(), tile.data(), tile.size());
      float least = INFINITY, most = -INFINITY;
      for (int lane = 0; lane < 32; ++lane) {
        uint32_t pairs[2][2][4];
        read_pairs<kType>(reinterpret_cast<const std::byte*>(words.data()), 0, lane, pairs);
        for (int i = 0; i < 32; ++i) {
          const uint32_t pair = pairs[i / 16][i / 8 % 2][i / 2 % 4];
          const float value = float_of(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
          ASSERT_EQ(value, std::nearbyint(value));
          least = std::min(least, value);
          most = std::max(most, value);
        }
      }
      // Of 1024 random quants some are within a 32nd of either end.
      const float range = Format::kWhole ? 255 : static_cast<float>((16 << Format::kHighBits) - 1);
      const float first = Format::kWhole ? -128 : 128;
      EXPECT_GE(least, first);
      EXPECT_LE(least, first + range / 32);
      EXPECT_LE(most, first + range);
      EXPECT_GE(most, first + range - range / 32);
    });
}

TEST(CudaChunks, TakeATenthMoreThanTheFileAtMost) {
  constexpr int64_t kWidth = 4096;
  for (const DType dtype : kBlockTypes) {
    const BlockSize block = block_size(dtype);
    const int64_t in_file = 16 * kWidth / block.elements * block.bytes;
    const int64_t packed = chunks_of(dtype, kWidth) * chunk_bytes(dtype);
    EXPECT_GE(packed, in_file) << dtype_name(dtype);
    EXPECT_LE(10 * packed, 11 * in_file) << dtype_name(dtype);
  }
}

TEST(CudaChunks, WidthsThatCutABlockAreNotPacked) {
  for (const DType dtype : kBlockTypes) {
    const int64_t width = block_size(dtype).elements;
    EXPECT_TRUE(packs_into_chunks(dtype, 3 * width));
    EXPECT_FALSE(packs_into_chunks(dtype, 3 * width + 8));
    EXPECT_FALSE(packs_into_chunks(dtype, 0));
  }
  EXPECT_FALSE(packs_into_chunks(DType::kF16, 64));
}

}  // namespace
}  // namespace sluice::impl::cuda::linear
