// A model whose layers are divided over ranks by width: each rank has of every layer some of the
// attention heads and of the MLP's inner columns, and of the head some of the vocabulary. All ranks
// have the same residual stream. docs/scale.md says what travels.

#pragma once

#include <optional>
#include <span>
#include <vector>

#include "io/weight_store.h"
#include "model/range.h"
#include "model/spec.h"
#include "ranks/communicator.h"

namespace sluice::impl {

// What one rank has.
struct TensorRanges {
  Range kv_heads;  // with the query heads that read them
  Range inner;     // columns of the MLP
  Range vocab;     // rows of the head
  Range model;     // rows of matrices of d_model rows that are divided by rows
};

// A share to each of n ranks, as equal as can be. Borders of inner columns are borders of blocks,
// of those that are stored and of those of type `weights`, where there are as many blocks as ranks;
// else of blocks of q8_0, or multiples of 8, where there are as many of these. Throws Error for
// more ranks than key heads, or than columns or rows of a matrix that is divided.
std::vector<TensorRanges> divide_tensors(const ModelDescription& description,
                                         const WeightStore& store, std::optional<DType> weights,
                                         int n);

// The part of a description that is a rank's: its spec has the rank's heads and inner columns, its
// names the rank's rows and columns of matrices. The vocabulary of the spec and what embeds tokens
// stay whole. with_biases: of the products that ranks add up, of which one rank has them.
ModelDescription description_of(const ModelDescription& whole, const TensorRanges& ranges,
                                bool with_biases);

// Rows of a stack.
MatrixNames rows_of(const MatrixNames& names, Range rows);

// What one rank has of a divided model, and its messages to the others. All ranks make the same
// passes in the same order. The ranks must outlive it.
class TensorShare : public RankExchange {
 public:
  // all: of every rank.
  TensorShare(Communicator& ranks, std::vector<TensorRanges> all)
      : ranks_(ranks), all_(std::move(all)) {}

  const TensorRanges& ranges() const { return all_[static_cast<size_t>(ranks_.rank())]; }
  bool first() const { return ranks_.rank() == 0; }
  bool last() const { return ranks_.rank() == ranks_.size() - 1; }
  Communicator& ranks() const { return ranks_; }

  // Collective, before the first pass: where each rank has a device of its own that can be joined
  // with the others, sums go from device to device, else through the host.
  void connect(Backend& backend);
  bool sums_on_devices() const { return device_sums_ != nullptr; }

  // The same bits on every rank.
  void sum(Backend& backend, const Tensor& rows) override;
  void gather(Backend& backend, const ConstTensor& own, const Tensor& out) override;
  // Brings the scores of this rank's vocabulary, (n_rows, its size) f32 on any device, to the last
  // rank, which writes those of all to out, (n_rows, vocab) on the host.
  void bring_scores(Backend& backend, const ConstTensor& own, const Tensor& out);

 private:
  // Copies them to rows_, on the host.
  std::span<float> host_rows(Backend& backend, const ConstTensor& rows);

  Communicator& ranks_;
  std::vector<TensorRanges> all_;
  std::unique_ptr<RankSums> device_sums_;  // or none
  std::vector<float> rows_;                // of a device, or of another rank, on their path
};

}  // namespace sluice::impl
