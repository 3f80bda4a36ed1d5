// A pass of one token: one kernel.

#include "backend/cuda/selection/pass.h"

namespace sluice::impl::cuda::selection {

bool CudaSelector::extend_by_one(const SelectArgs& args) {
  const ConstTensor* residual = spec_.outlier_ratio > 0 ? &args.residual : nullptr;
  if (!can_decide_one(args.rows, residual)) return false;
  const auto n_sets = static_cast<int64_t>(sets_.size());
  device_sets_.reserve(n_tokens_ + 1, n_tokens_, spec_.want_cosines);
  reserve_columns(live_ ? 1 : 0, args.rows.dtype() == DType::kBF16);

  Pass pass{};
  pass.rows = args.rows;
  const int64_t norms_bytes = 256, cosines_bytes = round_up(4 * n_columns_, 256);
  auto* scratch = static_cast<std::byte*>(context_->scratch(norms_bytes + cosines_bytes + n_sets));
  auto* norms = reinterpret_cast<double*>(scratch);
  pass.inherited_flags = reinterpret_cast<uint8_t*>(scratch + norms_bytes + cosines_bytes);
  mark_inherited(args, pass);

  ChunkView view = view_chunk(pass, 0, 1);
  view.rows.exact = {args.rows.bytes(), args.rows.row_stride(), norms};
  decide_one(*context_,
             {.keep = keep_view(view, device_products_.data()),
              .exempt = {.first = n_tokens_,
                         .n = 1,
                         .sinks = spec_.sinks,
                         .ratio = spec_.outlier_ratio,
                         .residual_inverse = residual == nullptr ? nullptr : norms + 1,
                         .state = median_state_.data(),
                         .exempt = nullptr},
              .inverse = norms,
              .residual_inverse = norms + 1,
              .cosines = reinterpret_cast<float*>(scratch + norms_bytes),
              .arrived = context_->zeros(1)},
             residual, n_columns_);
  counts_index_ = 1 - counts_index_;
  ++n_tokens_;
  send_count();
  return true;
}

}  // namespace sluice::impl::cuda::selection
