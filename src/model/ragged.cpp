// A pass over a ragged batch: the new rows of all sequences are stacked.

#include <algorithm>
#include <numeric>

#include "model/grown.h"
#include "model/model.h"
#include "model/shapes.h"

namespace sluice::impl {

ConstTensor Model::forward_ragged(std::span<const SequenceTokens> sequences) {
  SLUICE_CHECK(!sequences.empty() && !observer_ && !linear_observer_);
  std::vector<int32_t> tokens, positions;
  std::vector<int64_t> lengths;
  int64_t n_positions = 0;
  for (const SequenceTokens& sequence : sequences) {
    const KvCache& cache = *sequence.cache;
    SLUICE_CHECK(cache.n_batch() == 1);
    SLUICE_CHECK(std::none_of(sequences.data(), &sequence, [&](const SequenceTokens& other) {
      return other.cache == sequence.cache;
    }));
    check_tokens(sequence.tokens, cache);
    lengths.push_back(std::ssize(sequence.tokens));
    tokens.insert(tokens.end(), sequence.tokens.begin(), sequence.tokens.end());
    positions.resize(tokens.size());
    std::iota(positions.end() - lengths.back(), positions.end(),
              static_cast<int32_t>(cache.length()));
    n_positions = std::max(n_positions, cache.length() + lengths.back());
  }
  const int64_t n_rows = std::ssize(tokens);
  workspace_.resize(*backend_, own_block_shape(), n_rows);
  std::vector<KvCache*> caches;
  for (const SequenceTokens& sequence : sequences) caches.push_back(sequence.cache);
  if (receives())
    stage_->receive(*backend_, workspace_.residual(), caches);
  else
    embed(tokens, lengths, positions);
  if (spec_.position == PositionKind::kRotary) reach(n_positions);
  const Tensor hidden = grown(*backend_, hidden_, backend_->compute_dtype(), n_rows, spec_.d_model);
  // Attention of accelerated layers is recorded for one position alone.
  const bool recordable =
      n_rows == std::ssize(sequences) &&
      std::all_of(sequences.begin(), sequences.end(), [&](const SequenceTokens& sequence) {
        return sequence.cache->all_dense() && can_record(*sequence.cache);
      });
  const auto run = [&] { run_ragged_blocks(sequences, positions, hidden); };
  if (recordable) {
    std::vector<uint64_t> ids;
    for (const KvCache* cache : caches) ids.push_back(cache->id());
    run_recorded(ragged_step_, std::move(ids), {.run = run, .positions = positions});
  } else {
    run();
  }
  for (const SequenceTokens& sequence : sequences)
    sequence.cache->advance(std::ssize(sequence.tokens));
  send_on(caches);
  return hidden;
}

void Model::run_ragged_blocks(std::span<const SequenceTokens> sequences,
                              std::span<const int32_t> positions, const Tensor& hidden) {
  const BlockShape shape = own_block_shape();
  KvCache& first = *sequences.front().cache;  // times of the whole pass are its
  std::vector<SequencePart> parts(sequences.size());
  for (int64_t layer = layers_.begin; layer < layers_.end; ++layer) {
    int64_t row = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      KvCache& cache = *sequences[i].cache;
      parts[i] = {.first_row = row,
                  .n_tokens = std::ssize(sequences[i].tokens),
                  .first_position = cache.length(),
                  .cache = cache.layer(layer),
                  .accelerated = cache.accelerated(layer),
                  .gates = cache.gates(layer)};
      row += parts[i].n_tokens;
    }
    const RotaryTables& rotary = rotary_of(layer);
    run_block(*backend_, shape, weights_.blocks[static_cast<size_t>(layer)],
              {.layer = layer,
               .n_tokens = hidden.rows(),
               .first_position = 0,
               .cache = {},
               .cosine = rotary.cosine.view(),
               .sine = rotary.sine.view(),
               .times = &first.times(layer),
               .timed_device = first.waits_to_time() ? backend_.get() : nullptr,
               .ranks = share_.get(),
               .parts = parts,
               .positions = positions},
              workspace_);
  }
  final_norm(hidden);
}

}  // namespace sluice::impl
