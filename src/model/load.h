// Stored tensors -> weights on a backend, with every shape checked against the description.

#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "io/weight_store.h"
#include "layer/block.h"
#include "model/spec.h"
#include "model/stage.h"
#include "model/weight_type.h"

namespace sluice::impl {

struct ModelWeights {
  std::unique_ptr<Table> token_table, position_table, type_table;
  Norm embed_norm, final_norm, head_norm;
  std::unique_ptr<LinearWeights> project_in, head_transform, head;  // null where absent
  std::vector<BlockWeights> blocks;
  int64_t bytes = 0;  // of all packed matrices
  int64_t n_matrices = 0;
  int64_t n_other_type = 0;  // whose width the type asked for does not fit
};

BlockShape block_shape(const ModelSpec& spec);

// A matrix to be read from the store, every part's shape checked; the store must outlive it.
MatrixSource matrix_source(const WeightStore& store, const MatrixNames& names, int64_t n_in);

struct WeightOptions {
  std::function<void(double)> progress = {};  // called with the share of layers done, from 0 to 1
  WeightType weights = {};
  const Stage* stage = nullptr;  // only its tensors are read; without one, all of the description's
};
ModelWeights load_weights(const ModelDescription& description, const WeightStore& store,
                          Backend& backend, const WeightOptions& options);

// Refuses a stored matrix of another shape than the description's, without reading it.
void check_matrix_shapes(const ModelDescription& description, const WeightStore& store);
// The weights as a backend packs them, without packing: for estimates.
int64_t packed_bytes(const ModelDescription& description, DType dtype);
// The same by layer, of weights that are asked to be of a type, or stay in blocks as they are
// stored.
struct PackedType {
  DType compute;
  std::optional<DType> weights = {};
};
DividedBytes divided_bytes(const ModelDescription& description, const WeightStore& store,
                           const PackedType& type);
// The same of all together, as they are stored.
int64_t packed_bytes_as_stored(const ModelDescription& description, const WeightStore& store,
                               DType dtype);

}  // namespace sluice::impl
