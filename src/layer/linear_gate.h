// A linear layer that reads less where its input allows it: what it does with every token of the
// sequences of a batch, and what it counted. docs/algorithm.md, section 4.

#pragma once

#include <array>
#include <memory>
#include <vector>

#include "backend/bypass.h"
#include "core/quantiles.h"
#include "layer/adaptive_basis.h"
#include "layer/linear_group.h"
#include "plan/linear_plan.h"

namespace sluice::impl {

// Weights are counted as decoding the tokens one by one reads them: elements of V, M and W by the
// formulas of section 4, however many rows shared a product.
struct LinearCounts {
  int64_t n_tokens = 0;
  int64_t n_fast = 0;       // gsi: by the image alone
  int64_t n_bypassed = 0;   // gsi: not even projected
  int64_t n_kept = 0;       // graded: elements that were multiplied, of n_tokens * n_in
  int64_t n_additions = 0;  // adaptive: directions that joined
  double elements = 0, dense_elements = 0;
  double basis_elements = 0;  // gsi: of elements, those of V
  LogHistogram residuals;     // gsi: ‖r‖ / ‖x‖ of the tokens projected

  LinearCounts& operator+=(const LinearCounts& other);
  // Adds the elements that another rank read for the same tokens. It decided as this one and has
  // the same V, so these count once.
  void add_rank(const LinearCounts& other);

  template <typename Archive>
  void transfer(Archive& archive) {
    archive(n_tokens, n_fast, n_bypassed, n_kept, n_additions, elements, dense_elements,
            basis_elements, residuals);
  }
};

// Memory that the gates of one cache share, grown and never shrunk.
class LinearScratch {
 public:
  enum Use : uint8_t { kCoordinates, kFast, kSlow, kProducts, kUses };
  Tensor get(Backend& backend, Use use, DType dtype, int64_t n_rows, int64_t width);

  std::vector<float> residuals;  // (n_rows)
  std::vector<int32_t> kept;     // (n_rows)
  std::vector<TokenPath> paths;  // (n_rows)
  std::vector<int32_t> fast_rows, slow_rows, places;

 private:
  std::array<Buffer, kUses> buffers_;
};

class LinearGate {
 public:
  // The group must have what the plan asks for, and outlive the gate.
  LinearGate(Backend& backend, const LinearGroup& group, const GroupPlan& plan, int64_t n_batch,
             std::shared_ptr<LinearScratch> scratch);

  // args.weights is not used. Rows are the next tokens of every sequence, stacked, or of the one
  // named. Which path a token takes depends on it and on those before it alone, round-off near
  // epsilon aside.
  void run(const LinearArgs& args, int64_t sequence);

  // Whether a device decides on the next token of every sequence, so that it can be recorded; then
  // expect() goes before every replay.
  bool can_record() const;
  void expect();

  const GroupPlan& plan() const { return plan_; }
  const LinearCounts& counts() const;  // of all tokens; may wait for a device
  int64_t n_in() const { return group_.dense().n_in(); }
  void reset();  // sequences begin anew, and so do the counts

 private:
  struct Sequence {
    Bypass bypass;
    bool on_device = false;  // the device knows where it stands
    std::unique_ptr<AdaptiveBasis> adaptive;
  };
  // A basis in force and its image.
  struct InForce {
    const SubspaceBasis* basis;
    const LinearWeights* image;
  };

  void run_gsi(const LinearArgs& args, int64_t first, int64_t n_sequences);
  void run_on_device(const LinearArgs& args, int64_t first, int64_t n_sequences);
  // Counts tokens that the device is about to decide on, and tells it where their sequences stand.
  void prepare_device(int64_t first, int64_t n_sequences, int64_t n_tokens);
  void count_tokens(int64_t n);
  // What the device has decided: moves the sequences on and counts it.
  void receive() const;
  void run_adaptive(const LinearArgs& args, Sequence& sequence);
  void run_graded(const LinearArgs& args);
  // Projects rows that follow each other in a sequence and sets scratch's paths from `begin` on.
  void decide(Sequence& sequence, const InForce& in_force, const ConstTensor& x,
              const Tensor& coordinates, int64_t begin);
  void count(TokenPath path, int64_t rank) const;
  void count_kept(int32_t kept) const;
  void multiply(const LinearArgs& args, const InForce& in_force, const ConstTensor& coordinates);

  Backend& backend_;
  const LinearGroup& group_;
  GroupPlan plan_;
  std::shared_ptr<LinearScratch> scratch_;
  std::unique_ptr<RowGate> device_;  // or null
  // Behind what the device has decided until receive().
  mutable std::vector<Sequence> sequences_;
  mutable LinearCounts counts_;
  mutable std::vector<int64_t> pending_;  // the sequences of the rows that it decides
};

// The gates of a layer by linear input; nullptr where it is dense.
using LinearGates = std::array<std::unique_ptr<LinearGate>, kLinearInputs.size()>;

}  // namespace sluice::impl
