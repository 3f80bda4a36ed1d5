// A gate's memory on the device: where its sequences stand, and what it decided.

#include "backend/cuda/elements.h"
#include "backend/cuda/subspace.h"
#include "backend/cuda/subspace_kernels.h"

namespace sluice::cuda {
namespace {

class DeviceGate final : public RowGate {
 public:
  DeviceGate(std::shared_ptr<Context> context, const GateSpec& spec)
      : context_(std::move(context)),
        basis_(dynamic_cast<const DeviceBasis&>(*spec.basis)),
        image_(dynamic_cast<const DeviceWeights&>(*spec.image)),
        dense_(dynamic_cast<const DeviceWeights&>(*spec.dense)),
        epsilon_(spec.epsilon),
        slow_tokens_(spec.slow_tokens),
        retry_tokens_(spec.retry_tokens),
        states_(context_, std::vector<GateState>(static_cast<size_t>(spec.n_sequences))),
        verdicts_(context_, kRoom),
        coordinates_(context_, DType::kBF16, 1, basis_.rank()),
        copy_(context_, DType::kBF16, 1, basis_.n_in()),
        products_(context_, basis_.rank()),
        norms_(context_, gate_parts(basis_.rank())),
        words_(context_, 2) {
    SLUICE_CHECK(image_.n_in() == basis_.rank() && dense_.n_in() == basis_.n_in());
    SLUICE_CHECK(image_.n_out() == dense_.n_out() && spec.n_sequences > 0);
  }

  void set(int64_t sequence, int64_t slow_in_a_row, int64_t to_skip) override {
    const int32_t standing[2] = {static_cast<int32_t>(slow_in_a_row),
                                 static_cast<int32_t>(to_skip)};
    context_->send(standing, state(sequence), sizeof standing);
  }

  void run(const LinearArgs& args, int64_t sequence) override {
    const int64_t n_rows = args.x.rows();
    SLUICE_CHECK(args.x.row_elements() == basis_.n_in() && args.x.dtype() == DType::kBF16);
    SLUICE_CHECK(args.out.row_elements() == dense_.n_out() && args.out.rows() == n_rows);
    SLUICE_CHECK(n_kept_ + n_rows <= kRoom);
    for (int64_t row = 0; row < n_rows; ++row) {
      ConstTensor x = args.x.rows_from(row, 1);
      if (reinterpret_cast<uintptr_t>(x.bytes()) % 16 != 0 || basis_.n_in() % kPad != 0) {
        convert(*context_, x, copy_.rows);
        x = copy_.padded;
      }
      run_gate(*context_, {.vectors = basis_.vectors.padded,
                           .diagonal = basis_.deviation.diagonal.data(),
                           .overlaps = basis_.deviation.overlaps.padded,
                           .deviation = basis_.deviation.norm,
                           .rounding = basis_.deviation.rounding,
                           .epsilon = epsilon_,
                           .slow_tokens = slow_tokens_,
                           .retry_tokens = retry_tokens_,
                           .state = state(sequence),
                           .verdict = verdicts_.data() + n_kept_++,
                           .step = {.products = products_.data(),
                                    .coordinates = coordinates_.memory.data(),
                                    .norms = norms_.data(),
                                    .passes_by = words_.data(),
                                    .way = words_.data() + 1},
                           .image = image_.matrix.padded,
                           .dense = dense_.matrix.padded,
                           .x = x,
                           .bias = dense_.bias.values.data(),
                           .activation = args.activation,
                           .accumulate = args.accumulate,
                           .out = args.out.rows_from(row, 1)});
    }
  }

  std::vector<RowVerdict> take() override {
    std::vector<RowVerdict> taken(static_cast<size_t>(std::exchange(n_kept_, 0)));
    if (!taken.empty())
      context_->fetch(verdicts_.data(), taken.data(),
                      static_cast<int64_t>(taken.size() * sizeof(RowVerdict)));
    return taken;
  }
  void forget() override { n_kept_ = 0; }

 private:
  GateState* state(int64_t sequence) const {
    SLUICE_CHECK(sequence >= 0 && sequence < states_.size());
    return states_.data() + sequence;
  }

  std::shared_ptr<Context> context_;
  const DeviceBasis& basis_;
  const DeviceWeights &image_, &dense_;
  double epsilon_;
  int32_t slow_tokens_, retry_tokens_;
  DeviceArray<GateState> states_;     // (n_sequences)
  DeviceArray<RowVerdict> verdicts_;  // (kRoom)
  DeviceMatrix coordinates_, copy_;   // one row each
  DeviceArray<float> products_;
  DeviceArray<double> norms_;
  DeviceArray<int32_t> words_;
  int64_t n_kept_ = 0;
};

}  // namespace

std::unique_ptr<RowGate> make_gate(const std::shared_ptr<Context>& context, const GateSpec& spec) {
  const auto& basis = dynamic_cast<const DeviceBasis&>(*spec.basis);
  if (basis.vectors.rows.dtype() != DType::kBF16) return nullptr;
  return std::make_unique<DeviceGate>(context, spec);
}

}  // namespace sluice::cuda
