#include "model/weight_type.h"

#include <algorithm>

#include "core/shape.h"
#include "core/threads.h"
#include "io/gguf_blocks.h"
#include "io/quantise/quantise.h"

namespace sluice::impl {
namespace {

// Rows that are read at a time: a transposed matrix is read by columns.
constexpr int64_t kRowsAtATime = 16;

bool is_block(DType type) { return block_size(type).elements > 1; }

// `source` in blocks of `type`.
MatrixSource in_blocks(MatrixSource source, DType type) {
  if (!source.stored.empty() &&
      std::all_of(source.stored.begin(), source.stored.end(),
                  [type](const StoredRows& rows) { return rows.dtype == type; }))
    return source;
  const BlockSize block = block_size(type);
  const int64_t n_in = source.n_in, row_bytes = n_in / block.elements * block.bytes;
  auto blocks = std::make_shared<std::vector<std::byte>>(
      static_cast<size_t>(checked_mul(source.n_out, row_bytes)));
  const int64_t n_pieces = (source.n_out + kRowsAtATime - 1) / kRowsAtATime;
  parallel_for(n_pieces, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> rows(static_cast<size_t>(kRowsAtATime * n_in));
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t first = piece * kRowsAtATime;
      const int64_t last = std::min(first + kRowsAtATime, source.n_out);
      source.read_rows(first, last, rows.data());
      quantise_blocks(type, {rows.data(), static_cast<size_t>((last - first) * n_in)},
                      blocks->data() + first * row_bytes);
    }
  });
  source.read_rows = [blocks, type, row_bytes, per_row = n_in / block.elements](
                         int64_t begin, int64_t end, float* out) {
    expand_blocks(type, blocks->data() + begin * row_bytes, (end - begin) * per_row, out);
  };
  source.stored = {{0, source.n_out, type, blocks->data()}};
  source.owner = std::move(blocks);
  return source;
}

}  // namespace

std::optional<DType> weight_type_named(std::string_view name) {
  const auto found = std::find_if(kWeightTypes.begin(), kWeightTypes.end(),
                                  [name](DType type) { return dtype_name(type) == name; });
  if (found == kWeightTypes.end()) return std::nullopt;
  return *found;
}

DType fitting_weight_type(DType wanted, int64_t n_in) {
  if (!is_block(wanted) || n_in % block_size(wanted).elements == 0) return wanted;
  return n_in % block_size(DType::kQ8_0).elements == 0 ? DType::kQ8_0 : DType::kF32;
}

MatrixSource with_weight_type(MatrixSource source, const WeightType& wanted) {
  if (wanted.type) {
    const DType type = fitting_weight_type(*wanted.type, source.n_in);
    if (is_block(type))
      source = in_blocks(std::move(source), type);
    else
      source.stored.clear();
  }
  if (wanted.expanded) source.stored.clear();
  return source;
}

}  // namespace sluice::impl
