// A gate's memory on the device: where its sequences stand, and what it decided.

#include <algorithm>
#include <bit>

#include "backend/cuda/elementwise/elements.h"
#include "backend/cuda/subspace/kernels.h"
#include "backend/cuda/subspace/subspace.h"

namespace sluice::impl::cuda::subspace {
namespace {

// Rows whose decisions nobody has asked for yet. The device counts rows for itself, so that a
// recording finds the place of each. Places are a ring.
class DeviceDecisions : public RowGate {
 public:
  explicit DeviceDecisions(std::shared_ptr<Context> context)
      : context_(std::move(context)),
        decisions_(context_, kRoom),
        n_rows_(context_, std::vector<uint32_t>(1)) {}

  std::vector<RowDecision> take() final {
    std::vector<RowDecision> taken(static_cast<size_t>(n_pending_));
    for (int64_t i = 0; i < std::ssize(taken);) {
      const int64_t place = (n_asked_ - n_pending_ + i) % kRoom;
      const int64_t n = std::min(std::ssize(taken) - i, kRoom - place);
      settle(place, n);
      context_->fetch(decisions_.data() + place, taken.data() + i,
                      n * static_cast<int64_t>(sizeof(RowDecision)));
      i += n;
    }
    n_pending_ = 0;
    return taken;
  }
  void forget() final { n_pending_ = 0; }
  void expect(int64_t n_rows) final {
    SLUICE_CHECK(n_pending_ + n_rows <= kRoom);
    n_pending_ += n_rows;
    n_asked_ += n_rows;
  }

 protected:
  void expect_unless_recorded(int64_t n_rows) {
    if (!context_->recording()) expect(n_rows);
  }
  RowDecision* decisions() const { return decisions_.data(); }
  uint32_t* n_rows() const { return n_rows_.data(); }
  // Before the decisions of n places are read.
  virtual void settle(int64_t place, int64_t n) = 0;

  const std::shared_ptr<Context> context_;

 private:
  DeviceArray<RowDecision> decisions_;
  DeviceArray<uint32_t> n_rows_;
  int64_t n_asked_ = 0, n_pending_ = 0;
};

class SubspaceGate final : public DeviceDecisions {
 public:
  SubspaceGate(std::shared_ptr<Context> context, linear::Multiplier& multiplier,
               const GateSpec& spec)
      : DeviceDecisions(std::move(context)),
        basis_(dynamic_cast<const DeviceBasis&>(*spec.basis)),
        deviation_(basis_.deviation(context_, multiplier)),
        image_(dynamic_cast<const linear::DeviceWeights&>(*spec.image)),
        dense_(dynamic_cast<const linear::DeviceWeights&>(*spec.dense)),
        epsilon_(spec.epsilon),
        limits_(spec.limits),
        states_(context_, std::vector<Bypass>(static_cast<size_t>(spec.n_sequences))),
        entries_(context_, kRoom),
        coordinates_(context_, DType::kBF16, kRoom, basis_.rank()),
        copy_(context_, DType::kBF16, 1, basis_.n_in()),
        messages_(context_, std::vector<GateMessage>(
                                static_cast<size_t>(gate_messages(*context_, basis_.rank())))) {
    SLUICE_CHECK(image_.n_in() == basis_.rank() && dense_.n_in() == basis_.n_in());
    SLUICE_CHECK(image_.n_out() == dense_.n_out() && spec.n_sequences > 0);
  }

  void set(int64_t sequence, const Bypass& bypass) override {
    context_->send(&bypass, state(sequence), sizeof bypass);
  }

  void run(const LinearArgs& args, int64_t sequence) override {
    const int64_t n_rows = args.x.rows();
    SLUICE_CHECK(args.x.row_elements() == basis_.n_in() && args.x.dtype() == DType::kBF16);
    SLUICE_CHECK(args.out.row_elements() == dense_.n_out() && args.out.rows() == n_rows);
    expect_unless_recorded(n_rows);
    for (int64_t row = 0; row < n_rows; ++row) {
      ConstTensor x = args.x.rows_from(row, 1);
      if (reinterpret_cast<uintptr_t>(x.bytes()) % 16 != 0 || basis_.n_in() % linear::kPad != 0) {
        elementwise::convert(*context_, x, copy_.rows);
        x = copy_.padded;
      }
      run_gate(*context_, {.vectors = basis_.vectors.padded,
                           .diagonal = deviation_.diagonal.data(),
                           .overlaps = deviation_.overlaps.padded,
                           .deviation = deviation_.norm,
                           .rounding = deviation_.rounding,
                           .epsilon = epsilon_,
                           .limits = limits_,
                           .state = state(sequence),
                           .memory = {.messages = messages_.data(),
                                      .n_rows = DeviceDecisions::n_rows(),
                                      .entries = entries_.data(),
                                      .coordinates = coordinates_.padded},
                           .image = image_.matrix.padded,
                           .dense = dense_.matrix.padded,
                           .x = x,
                           .bias = dense_.bias.values.data(),
                           .activation = args.activation,
                           .accumulate = args.accumulate,
                           .out = args.out.rows_from(row, 1)});
    }
  }

 private:
  void settle(int64_t place, int64_t n) override {
    settle_residuals(*context_, {.entries = entries_.data() + place,
                                 .coordinates = coordinates_.padded.rows_from(place, n),
                                 .overlaps = deviation_.overlaps.padded,
                                 .decisions = decisions() + place});
  }
  Bypass* state(int64_t sequence) const {
    SLUICE_CHECK(sequence >= 0 && sequence < states_.size());
    return states_.data() + sequence;
  }

  const DeviceBasis& basis_;
  const Deviation& deviation_;
  const linear::DeviceWeights &image_, &dense_;
  double epsilon_;
  BypassLimits limits_;
  DeviceArray<Bypass> states_;               // (n_sequences)
  DeviceArray<GateEntry> entries_;           // (kRoom)
  linear::DeviceMatrix coordinates_, copy_;  // (kRoom, rank) and one row of x
  DeviceArray<GateMessage> messages_;
};

class GradedGate final : public DeviceDecisions {
 public:
  GradedGate(std::shared_ptr<Context> context, const GateSpec& spec)
      : DeviceDecisions(std::move(context)),
        columns_(dynamic_cast<const DeviceColumns&>(*spec.columns)),
        dense_(dynamic_cast<const linear::DeviceWeights&>(*spec.dense)),
        squared_epsilon_(spec.epsilon * spec.epsilon),
        most_kept_(spec.most_kept),
        n_splits_(column_splits(*context_, columns_.n_out())),
        graded_(context_, DType::kBF16, 1, columns_.n_in()),
        partial_(context_, n_splits_ * columns_.columns.padded.row_elements()),
        values_(context_, columns_.n_in()),
        places_(context_, columns_.n_in() + 2),
        keys_(context_,
              static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(columns_.n_in())))) {
    SLUICE_CHECK(columns_.n_in() == dense_.n_in() && columns_.n_out() == dense_.n_out());
  }

  void set(int64_t, const Bypass&) override {}

  void run(const LinearArgs& args, int64_t) override {
    const int64_t n_in = columns_.n_in();
    SLUICE_CHECK(args.x.row_elements() == n_in && args.x.dtype() == DType::kBF16);
    SLUICE_CHECK(args.out.row_elements() == columns_.n_out() && args.out.rows() == args.x.rows());
    int32_t* by_columns = places_.data() + n_in + 1;
    const NonZeros list{places_.data(), values_.data(), places_.data() + n_in};
    expect_unless_recorded(args.x.rows());
    for (int64_t row = 0; row < args.x.rows(); ++row) {
      const Tensor out = args.out.rows_from(row, 1);
      grade_row(*context_, {.x = args.x.rows_from(row, 1),
                            .squared_epsilon = squared_epsilon_,
                            .most_kept = most_kept_ * static_cast<double>(n_in),
                            .most_columns = columns_.worth_share() * static_cast<double>(n_in),
                            .graded = graded_.rows,
                            .list = list,
                            .by_columns = by_columns,
                            .decisions = decisions(),
                            .n_rows = n_rows(),
                            .keys = keys_.data(),
                            .n_keys = keys_.size()});
      multiply_columns(*context_, {.columns = columns_.columns.padded,
                                   .x = list,
                                   .n_splits = n_splits_,
                                   .partial = partial_.data(),
                                   .bias = columns_.bias.values.data(),
                                   .activation = args.activation,
                                   .accumulate = args.accumulate,
                                   .out = out,
                                   .wanted = by_columns});
      linear::multiply_one_row(*context_,
                               {.weights = dense_.matrix.padded,
                                .x = graded_.padded,
                                .bias = dense_.bias.values.data(),
                                .activation = args.activation,
                                .accumulate = args.accumulate,
                                .out = out},
                               by_columns);
    }
  }

 private:
  void settle(int64_t, int64_t) override {}

  const DeviceColumns& columns_;
  const linear::DeviceWeights& dense_;
  double squared_epsilon_, most_kept_;
  int64_t n_splits_;
  linear::DeviceMatrix graded_;  // one row
  DeviceArray<float> partial_;   // (n_splits, n_out padded)
  DeviceArray<float> values_;    // (n_in)
  DeviceArray<int32_t>
      places_;  // (n_in) columns, their number, and whether they are used (by_columns)
  DeviceArray<uint64_t> keys_;
};

}  // namespace

std::unique_ptr<RowGate> make_gate(const std::shared_ptr<Context>& context,
                                   linear::Multiplier& multiplier, const GateSpec& spec) {
  // Weights in blocks too: the host decides, and their products are Backend::linear's.
  const auto* dense = dynamic_cast<const linear::DeviceWeights*>(spec.dense);
  if (dense == nullptr || dense->matrix.rows.dtype() != DType::kBF16) return nullptr;
  if (spec.columns != nullptr) return std::make_unique<GradedGate>(context, spec);
  if (!fits_gate(spec.basis->n_in(), spec.basis->rank())) return nullptr;
  if (!context->has_cooperative_launch()) return nullptr;
  if (!context->take_gate_place(gate_places(*context))) return nullptr;
  return std::make_unique<SubspaceGate>(context, multiplier, spec);
}

}  // namespace sluice::impl::cuda::subspace
