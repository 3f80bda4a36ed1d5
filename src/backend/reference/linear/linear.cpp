// Matrix products and table look-ups.

#include "backend/reference/linear/linear.h"

#include "backend/reference/common/values.h"

namespace sluice::impl::reference::linear {

Weights::Weights(const MatrixSource& source, DType dtype)
    : LinearWeights(source.n_out, source.n_in, source.n_out * source.n_in * element_bytes(dtype)),
      rows(host_buffer(dtype, {source.n_out, source.n_in})),
      bias(source.bias) {
  std::vector<float> row(static_cast<size_t>(source.n_in));
  for (int64_t n = 0; n < source.n_out; ++n) {
    source.read_rows(n, n + 1, row.data());
    for (int64_t k = 0; k < source.n_in; ++k) store(rows.view(), n, k, row[static_cast<size_t>(k)]);
  }
}

void linear(const LinearArgs& args) {
  const auto& weights = dynamic_cast<const Weights&>(*args.weights);
  SLUICE_CHECK(args.x.row_elements() == weights.n_in());
  SLUICE_CHECK(args.out.row_elements() == weights.n_out());
  SLUICE_CHECK(!args.accumulate || args.activation == Activation::kNone);
  for (int64_t row = 0; row < args.x.rows(); ++row) {
    for (int64_t n = 0; n < weights.n_out(); ++n) {
      double sum = weights.bias.empty() ? 0.0 : weights.bias[static_cast<size_t>(n)];
      for (int64_t k = 0; k < weights.n_in(); ++k)
        sum += double{load(args.x, row, k)} * load(weights.rows.view(), n, k);
      if (args.accumulate) sum += load(args.out, row, n);
      store(args.out, row, n, activate(args.activation, static_cast<float>(sum)));
    }
  }
}

void embed(const EmbedArgs& args) {
  const auto& table = dynamic_cast<const Rows&>(*args.table).source;
  SLUICE_CHECK(static_cast<int64_t>(args.ids.size()) == args.out.rows());
  std::vector<float> row(static_cast<size_t>(table.n_in));
  for (int64_t r = 0; r < args.out.rows(); ++r) {
    const int32_t id = args.ids[static_cast<size_t>(r)];
    SLUICE_CHECK(id >= 0 && id < table.n_out);
    table.read_rows(id, id + 1, row.data());
    const bool zero = args.zero_id == id;
    for (int64_t i = 0; i < table.n_in; ++i) {
      const float value = zero ? 0.0f : row[static_cast<size_t>(i)] * args.scale;
      store(args.out, r, i, args.accumulate ? load(args.out, r, i) + value : value);
    }
  }
}

}  // namespace sluice::impl::reference::linear
