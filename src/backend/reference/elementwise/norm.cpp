// Normalisation and rotary embedding, docs/algorithm.md section 3.

#include <cmath>

#include "backend/reference/common/values.h"
#include "backend/reference/elementwise/elementwise.h"

namespace sluice::impl::reference::elementwise {

void norm(const NormArgs& args) {
  const int64_t d = args.x.row_elements();
  std::vector<double> row(static_cast<size_t>(d));
  for (int64_t r = 0; r < args.x.rows(); ++r) {
    double mean = 0, squares = 0;
    for (int64_t i = 0; i < d; ++i) {
      row[static_cast<size_t>(i)] = load(args.x, r, i);
      mean += row[static_cast<size_t>(i)] / static_cast<double>(d);
    }
    if (args.kind == NormKind::kRms) mean = 0;
    for (double& x : row) {
      x -= mean;
      squares += x * x / static_cast<double>(d);
    }
    const double inverse = 1 / std::sqrt(squares + args.epsilon);
    for (int64_t i = 0; i < d; ++i) {
      const double weight = args.weight.defined() ? args.weight.data<float>()[i] : 1.0;
      const double bias = args.bias.defined() ? args.bias.data<float>()[i] : 0.0;
      store(args.out, r, i,
            static_cast<float>(row[static_cast<size_t>(i)] * inverse * weight + bias));
    }
  }
}

void norm_heads(const HeadNormArgs& args) {
  const int64_t n_heads = args.x.shape()[1], head_dim = args.x.shape()[2];
  for (int64_t head = 0; head < n_heads; ++head) {
    const Tensor of_head = Tensor(args.x.bytes() + head * head_dim * element_bytes(args.x.dtype()),
                                  args.x.dtype(), {args.x.rows(), head_dim}, args.x.device())
                               .with_row_stride(args.x.row_stride());
    norm({.kind = NormKind::kRms,
          .epsilon = args.epsilon,
          .x = of_head,
          .weight = head < args.n_queries ? args.query_weight : args.key_weight,
          .bias = {},
          .out = of_head});
  }
}

void rotate(const RotaryArgs& args) {
  const int64_t head_dim = args.x.shape()[2];
  const int64_t half = args.cosine.shape()[1];
  for (int64_t r = 0; r < args.x.rows(); ++r) {
    const int64_t position = args.positions.empty()
                                 ? args.first_position + r % args.n_tokens
                                 : int64_t{args.positions[static_cast<size_t>(r)]};
    SLUICE_CHECK(position < args.cosine.rows());
    for (int64_t head = 0; head < args.x.shape()[1]; ++head) {
      for (int64_t i = 0; i < half; ++i) {
        const bool halves = args.style == RotaryStyle::kHalves;
        const int64_t a = head * head_dim + (halves ? i : 2 * i);
        const int64_t b = head * head_dim + (halves ? i + half : 2 * i + 1);
        const double c = load(args.cosine, position, i), s = load(args.sine, position, i);
        const double x = load(args.x, r, a), y = load(args.x, r, b);
        store(args.x, r, a, static_cast<float>(x * c - y * s));
        store(args.x, r, b, static_cast<float>(y * c + x * s));
      }
    }
  }
}

}  // namespace sluice::impl::reference::elementwise
