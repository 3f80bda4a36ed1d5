#include "backend/cpu/gemm/blocks/expand.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "backend/cpu/gemm/blocks/layout.h"
#include "backend/cpu/primitives/rows.h"

namespace sluice::impl::cpu::gemm {
namespace {

constexpr int64_t kTile = kSubBlock * kGroupRows;

float half_at(const uint8_t* p) {
  uint16_t bits = 0;
  std::memcpy(&bits, p, sizeof(bits));
  return half_to_float(bits);
}

// Scales and minima of a group's block as floats, one to a row and scale_width weights.
struct Scales {
  std::array<float, 16 * kGroupRows> scale, minimum;  // (scales, rows)
};

void read_scales(const BlockLayout& layout, const uint8_t* block, Scales& out) {
  const int64_t n = layout.block / layout.scale_width;
  for (int64_t r = 0; r < kGroupRows; ++r) {
    const float d = half_at(block + 2 * r);
    const float m = layout.minima ? half_at(block + 2 * (kGroupRows + r)) : 0.0f;
    for (int64_t s = 0; s < n; ++s) {
      const auto at = static_cast<size_t>(s * kGroupRows + r);
      out.scale[at] = d;
      out.minimum[at] = m;
      if (layout.scales == 0) continue;
      const uint8_t* scales = block + layout.scales;
      const int scale = layout.minima ? scales[at] : static_cast<int8_t>(scales[at]);
      out.scale[at] = d * static_cast<float>(scale);
      if (layout.minima) out.minimum[at] = -(m * static_cast<float>(scales[64 + at]));
    }
  }
}

// Weights of 32 k as signed bytes, (chunk, row, 8), offset included.
template <int kBits, int kOffset>
void read_weights(const uint8_t* sub, int8_t* out) {
  for (int64_t j = 0; j < 4; ++j)
    for (int64_t i = 0; i < 64; ++i) {
      int q = 0;
      if constexpr (kBits == 8) {
        q = static_cast<int8_t>(sub[j * 64 + i]);
      } else {
        const uint8_t* low = sub + (kBits == 5 ? 32 : kBits == 6 ? 64 : 0);
        q = low[j % 2 * 64 + i] >> (j / 2 * 4) & 0xf;
        if constexpr (kBits == 5) q |= (sub[i % 32] >> (i / 32 * 4 + j) & 1) << 4;
        if constexpr (kBits == 6) q |= (sub[i] >> (2 * j) & 3) << 4;
      }
      out[j * 64 + i] = static_cast<int8_t>(q + kOffset);
    }
}

void read_weights(const BlockLayout& layout, const uint8_t* sub, int8_t* out) {
  switch (layout.bits) {
    case 8:
      return read_weights<8, 0>(sub, out);
    case 6:
      return read_weights<6, -32>(sub, out);
    case 5:
      return layout.offset == 0 ? read_weights<5, 0>(sub, out) : read_weights<5, -16>(sub, out);
    default:
      return layout.offset == 0 ? read_weights<4, 0>(sub, out) : read_weights<4, -8>(sub, out);
  }
}

// 32 weights of eight rows as (chunk, row, 8) floats. `scales` and `minima` are those of the first.
void scale_weights(const int8_t* q, const float* scale, const float* minimum, int64_t chunks,
                   float* out) {
  for (int64_t j = 0; j < 4; ++j) {
    const float* s = scale + j / chunks * kGroupRows;
    const float* m = minimum + j / chunks * kGroupRows;
    for (int64_t r = 0; r < kGroupRows; ++r)
      for (int64_t i = 0; i < kChunk; ++i) {
        const int64_t at = (j * kGroupRows + r) * kChunk + i;
        out[at] = s[r] * static_cast<float>(q[at]) + m[r];
      }
  }
}

// Rows [begin, end) of 32 weights of a group to where the panels have them.
template <typename T>
void scatter(const ExpandArgs& args, const T* weights, int64_t row, int64_t begin, int64_t end,
             int64_t k) {
  const int64_t nr = args.kernel->nr, kq = args.kernel->kq;
  for (int64_t r = begin; r < end; ++r) {
    const int64_t column = row + r - args.first_column, n = column % nr;
    T* panel = reinterpret_cast<T*>(args.out) + column / nr * args.depth * nr;
    for (int64_t j = 0; j < 4; ++j) {
      const T* from = weights + (j * kGroupRows + r) * kChunk;
      for (int64_t i = 0; i < kChunk; i += kq) {
        T* to = panel + (k - args.k + j * kChunk + i) * nr + n * kq;
        if (kq == 4)
          std::memcpy(to, from + i, 4 * sizeof(T));
        else
          std::memcpy(to, from + i, static_cast<size_t>(kq) * sizeof(T));
      }
    }
  }
}

}  // namespace

void expand_panels(const ExpandArgs& args) {
  const BlockLayout layout = make_block_layout(args.type);
  const int64_t last = std::min(args.first_column + args.n_columns, args.n_out);
  const int64_t chunks = layout.scale_width / kChunk, per_sub = kSubBlock / layout.scale_width;
  Scales scales;
  std::array<int8_t, kTile> q;
  std::array<float, kTile> wide;
  std::array<BFloat16, kTile> narrow;
  for (int64_t row = args.first_column / kGroupRows * kGroupRows; row < last; row += kGroupRows) {
    const int64_t begin = std::max<int64_t>(0, args.first_column - row);
    const int64_t end = std::min(kGroupRows, last - row);
    const auto* group =
        reinterpret_cast<const uint8_t*>(args.groups + row / kGroupRows * args.group_bytes);
    for (int64_t k = args.k; k < args.k + args.depth; k += layout.block) {
      const uint8_t* block = group + k / layout.block * layout.bytes;
      read_scales(layout, block, scales);
      for (int64_t s = 0; s < layout.block / kSubBlock; ++s) {
        read_weights(layout, block + layout.weights + s * layout.sub_bytes, q.data());
        const int64_t at = s * per_sub * kGroupRows;
        scale_weights(q.data(), scales.scale.data() + at, scales.minimum.data() + at, chunks,
                      wide.data());
        if (args.kernel->b_dtype == DType::kF32) {
          scatter(args, wide.data(), row, begin, end, k + s * kSubBlock);
        } else {
          primitives::narrow(wide.data(), kTile, narrow.data());
          scatter(args, narrow.data(), row, begin, end, k + s * kSubBlock);
        }
      }
    }
  }
}

}  // namespace sluice::impl::cpu::gemm
