// A model whose layers are divided over ranks: each is a stage and has layers that follow each
// other, their weights and their caches. The first embeds tokens, the last has the head.
// docs/scale.md says what travels.

#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/kv_cache.h"
#include "model/range.h"
#include "ranks/communicator.h"

namespace sluice::impl {

// What has to be divided, in bytes.
struct DividedBytes {
  std::vector<int64_t> layers;  // (n_layers)
  int64_t first = 0, last = 0;  // of the first stage and of the last one alone
};

// A range to each of n stages. The largest stage is as small as it can be; among such divisions the
// sum of squares is the smallest. A stage may have no layer.
std::vector<LayerRange> divide_layers(const DividedBytes& bytes, int n);

// The same by what fits: as above where each stage has the memory for it; else so that the largest
// share that a stage takes of its memory is as small as it can be. Throws Error where even that
// does not fit.
std::vector<LayerRange> divide_by_memory(const DividedBytes& bytes,
                                         std::span<const int64_t> memory);

// Makes tokens those of the last rank, which chose them.
void share_chosen(Communicator& ranks, std::span<int32_t> tokens);

// What one rank has of a divided model, and its messages to the others. All ranks make the same
// passes in the same order. The ranks must outlive it.
class Stage {
 public:
  Stage(Communicator& ranks, LayerRange layers) : ranks_(ranks), layers_(layers) {}

  const LayerRange& layers() const { return layers_; }
  int n_stages() const { return ranks_.size(); }
  bool first() const { return ranks_.rank() == 0; }
  bool last() const { return ranks_.rank() == ranks_.size() - 1; }
  Communicator& ranks() const { return ranks_; }

  // The residual stream of a pass, (n_rows, d_model) f32 on any device, and what layers inherit:
  // from the stage before, and to the one behind.
  void receive(Backend& backend, const Tensor& residual, std::span<KvCache* const> caches);
  void send(Backend& backend, const ConstTensor& residual, std::span<KvCache* const> caches);

 private:
  Communicator& ranks_;
  LayerRange layers_;
  std::vector<float> rows_;  // of a device's residual stream, on their path
};

// This rank's stage of layers that are divided by their bytes. The ranks must outlive it.
inline std::shared_ptr<Stage> balanced_stage(Communicator& ranks, const DividedBytes& bytes) {
  const auto ranges = divide_layers(bytes, ranks.size());
  return std::make_shared<Stage>(ranks, ranges[static_cast<size_t>(ranks.rank())]);
}

}  // namespace sluice::impl
