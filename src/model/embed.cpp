// Tokens -> the residual stream before the first block.

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "model/grown.h"
#include "model/model.h"

namespace sluice::impl {
namespace {

// Models that are trained in bf16 know the factor as bf16 has it; transformers rounds it in that
// number format alone.
float embed_scale(const ModelSpec& spec, DType dtype) {
  if (!spec.scale_embedding) return 1;
  const auto scale = static_cast<float>(std::sqrt(static_cast<double>(spec.d_model)));
  return dtype == DType::kBF16 ? to_float(to_bfloat16(scale)) : scale;
}

}  // namespace

void Model::embed(std::span<const int32_t> tokens, int64_t n_batch, int64_t first_position) {
  const int64_t n_tokens = std::ssize(tokens) / n_batch;
  std::vector<int32_t> positions(tokens.size());
  for (size_t i = 0; i < positions.size(); ++i)
    positions[i] = static_cast<int32_t>(first_position + static_cast<int64_t>(i) % n_tokens);
  embed(tokens, std::vector<int64_t>(static_cast<size_t>(n_batch), n_tokens), positions);
}

void Model::embed(std::span<const int32_t> tokens, std::span<const int64_t> lengths,
                  std::span<const int32_t> positions) {
  const auto n_rows = static_cast<int64_t>(tokens.size());
  const Tensor residual = workspace_.residual();
  const bool narrow = weights_.project_in != nullptr;
  const Tensor table_rows =
      narrow ? grown(*backend_, embedded_, DType::kF32, n_rows, spec_.d_embed) : residual;
  int64_t first = 0;
  // Without token dropout a row does not depend on the others of its sequence.
  for (const int64_t n_tokens : spec_.token_dropout ? lengths : std::span(&n_rows, 1)) {
    const auto ids = tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(n_tokens));
    EmbedArgs args{.table = weights_.token_table.get(),
                   .ids = ids,
                   .scale = embed_scale(spec_, backend_->compute_dtype()),
                   .zero_id = {},
                   .out = table_rows.rows_from(first, n_tokens)};
    first += n_tokens;
    if (spec_.token_dropout) {
      // Training masked 15% of the tokens and showed a mask for 80% of those.
      const auto n_masks = std::count(ids.begin(), ids.end(), spec_.mask_id);
      if (n_masks == n_tokens)
        throw Error("every token is a mask, nothing is left to embed",
                    "give some text around the masks");
      const double seen = static_cast<double>(n_masks) / static_cast<double>(n_tokens);
      args.scale = static_cast<float>((1 - 0.15 * 0.8) / (1 - seen));
      args.zero_id = spec_.mask_id;
    }
    backend_->embed(args);
  }
  if (narrow) {
    Tensor x = table_rows;
    if (backend_->compute_dtype() != DType::kF32) {
      x = grown(*backend_, projected_, backend_->compute_dtype(), n_rows, spec_.d_embed);
      backend_->convert(table_rows, x);
    }
    backend_->linear({.weights = weights_.project_in.get(), .x = x, .out = residual});
  }
  std::vector<int32_t> rows(tokens.size());
  const auto add = [&](const Table* table) {
    if (table != nullptr)
      backend_->embed(
          {.table = table, .ids = rows, .zero_id = {}, .accumulate = true, .out = residual});
  };
  add(weights_.type_table.get());  // rows are still all 0
  std::transform(positions.begin(), positions.end(), rows.begin(), [&](int32_t position) {
    return static_cast<int32_t>(position + spec_.position_offset);
  });
  add(weights_.position_table.get());
  if (weights_.embed_norm.exists) weights_.embed_norm.run(*backend_, residual, residual);
}

}  // namespace sluice::impl
