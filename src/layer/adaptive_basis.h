// Directions that a sequence adds to a calibrated basis. docs/algorithm.md, section 4.

#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backend/bypass.h"
#include "layer/linear_group.h"

namespace sluice::impl {

// What slow tokens miss of their rows joins the basis at every kBlock-th token, from tokens before
// it alone; where there is no room the direction of least recent energy leaves.
class AdaptiveBasis {
 public:
  static constexpr int64_t kBlock = 128;
  // Directions that may join at once: the dense weights are read once for all of them, but each
  // takes 4 (rank + capacity) n_in operations to be made orthogonal.
  static constexpr int64_t kAdditions = 16;

  AdaptiveBasis(Backend& backend, const LinearGroup& group, int64_t rank, int64_t capacity,
                double epsilon);

  // In force now.
  const SubspaceBasis& basis() const { return own_basis_ ? *own_basis_ : *calibrated_.basis; }
  const LinearWeights& image() const { return own_image_ ? *own_image_ : *calibrated_.image; }
  int64_t n_extra() const { return static_cast<int64_t>(extras_.size()); }

  int64_t to_boundary() const { return kBlock - n_tokens_ % kBlock; }
  bool at_boundary() const { return n_tokens_ > 0 && n_tokens_ % kBlock == 0; }

  // The next tokens of the sequence, decided; coordinates are those in the basis in force.
  void take(const ConstTensor& x, const ConstTensor& coordinates, std::span<const TokenPath> paths);
  // At a boundary, once: returns how many directions joined.
  int64_t grow();

 private:
  struct Extra {
    std::vector<float> direction;  // (n_in)
    std::vector<float> image;      // (n_out), without bias
    double energy = 0;             // recent: halved at every boundary
    bool is_new = false;
  };

  // What the basis and the extras leave of a row, as a unit vector; empty where they leave no more
  // than epsilon of it.
  std::vector<float> rest_of(const float* row) const;
  bool make_room();
  void rebuild();

  Backend& backend_;
  const LinearGroup& group_;
  const Subspace& calibrated_;
  int64_t rank_, capacity_;
  double epsilon_;
  int64_t n_tokens_ = 0;
  int64_t n_slow_ = 0;             // since the boundary
  std::vector<float> candidates_;  // (kAdditions, n_in) the last slow rows since then, in a ring
  std::vector<double> energies_;   // of the extras, since the boundary
  std::vector<Extra> extras_;
  std::unique_ptr<SubspaceBasis> own_basis_;
  std::unique_ptr<LinearWeights> own_image_;
};

}  // namespace sluice::impl
