// One of a block's four matrices, in the forms that plans ask for. docs/algorithm.md, section 4.

#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"

namespace sluice::impl {

// Host copies of a basis and of W times its directions: what a sequence's own directions join.
struct HostSubspace {
  std::vector<float> vectors;  // (rank, n_in)
  std::vector<float> images;   // (rank, n_out), without bias
  std::vector<float> bias;     // (n_out), or empty
};

// A basis and the image of the matrix in it.
struct Subspace {
  std::shared_ptr<const SubspaceBasis> basis;
  std::unique_ptr<LinearWeights> image;  // (n_out, rank)
  std::unique_ptr<HostSubspace> host;    // where a plan is adaptive
};

class LinearGroup {
 public:
  LinearGroup() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): a matrix is a group that is dense only.
  LinearGroup(std::unique_ptr<LinearWeights> dense, bool by_rows = false)
      : dense_(std::move(dense)), by_rows_(by_rows) {}

  // Of a matrix that ranks add up the products of: this rank has some of its rows instead of some
  // of its columns, since a gate decides by whole inputs.
  bool by_rows() const { return by_rows_; }

  const LinearWeights& dense() const { return *dense_; }  // always there
  int64_t elements() const { return dense_->n_in() * dense_->n_out(); }

  // nullptr: not prepared.
  const Subspace* subspace(int64_t rank) const;
  const ColumnWeights* columns() const { return columns_.get(); }

  // source: the matrix again. Done once for each rank, whatever the gates' epsilons.
  void add_subspace(Backend& backend, const MatrixSource& source,
                    std::shared_ptr<const SubspaceBasis> basis);
  void add_columns(Backend& backend, MatrixSource source);
  // vectors: those of the basis of that rank, which is there.
  void add_host_subspace(Backend& backend, int64_t rank, std::span<const float> vectors,
                         std::vector<float> bias);

  // Of everything but the dense form. A basis that several groups share counts in each.
  int64_t prepared_bytes() const;

 private:
  std::unique_ptr<LinearWeights> dense_;
  bool by_rows_ = false;
  std::map<int64_t, Subspace> subspaces_;  // by rank
  std::unique_ptr<ColumnWeights> columns_;
};

// W times directions (n, n_in), without its bias: (n, n_out). One product.
std::vector<float> images_of(Backend& backend, const LinearWeights& weights,
                             std::span<const float> directions, std::span<const float> bias);

}  // namespace sluice::impl
