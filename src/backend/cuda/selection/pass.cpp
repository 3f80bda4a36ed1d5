// One pass of the selector: one chunk of tokens after the other.

#include "backend/cuda/selection/pass.h"

#include <algorithm>

namespace sluice::impl::cuda::selection {
namespace {

// Whether the tensor cores can take the rows where they are.
bool can_be_given(const ConstTensor& rows, int64_t padded) {
  return rows.dtype() == DType::kBF16 && rows.row_elements() == padded &&
         rows.row_stride() % 8 == 0 && reinterpret_cast<uintptr_t>(rows.bytes()) % 16 == 0;
}

}  // namespace

// The tensor cores add 16 products at a time, or twice 8, to a sum, aligned to the largest of these
// numbers and cut off below its 23rd bit: at most 18 / 16 units of 2^-23 per element, of numbers
// that no product of unit rows makes larger than 1. The rest is for norms and unit elements in f32.
// Rows that were f32 lose 2^-9 of each element, in both factors.
double product_error(int64_t padded, bool bf16) {
  const double sums = (1.25 * static_cast<double>(padded) + 16) * 0x1p-23;
  return bf16 ? sums : sums + 1.01 * 0x1p-8;
}

// Tokens [first, first + n) of the pass.
ChunkView CudaSelector::view_chunk(const Pass& pass, int64_t first, int64_t n) const {
  const ConstTensor rows = pass.rows.rows_from(first, n);
  ChunkView view{.n = n,
                 .first = n_tokens_,
                 .d = spec_.d_model,
                 .padded = padded_,
                 .n_sets = static_cast<int>(sets_.size()),
                 .n_splits = static_cast<int>(pass.splits),
                 .tile_columns = hopper() ? kHopperGramColumns : kGramTile,
                 .rule = rule_view(spec_.rule),
                 .slack = product_error(padded_, bf16_),
                 .bf16 = bf16_,
                 .want_cosines = spec_.want_cosines,
                 .thresholds = thresholds_.data()};
  view.rows.prepared = pass.prepared;
  view.rows.scale = pass.scale;
  view.rows.exact = bf16_ ? ExactRows{pass.prepared, padded_, pass.prepared_inverse}
                          : ExactRows{rows.bytes(), rows.row_stride(), pass.inverse + first};
  view.rows.exempt = pass.exempt + first;
  // Flags of several sets are wanted one behind the other.
  view.rows.inherited = view.n_sets == 1        ? pass.inherited + first
                        : n == pass.rows.rows() ? pass.inherited
                                                : pass.chunk_inherited;
  view.scratch = {.local = pass.local,
                  .largest = pass.largest,
                  .conflicts = pass.conflicts,
                  .sure = pass.sure,
                  .decision = pass.decision};
  if (hopper()) view.parts = {pass.parts, parts_arrived_.data()};
  view.kept = {
      .prepared = columns_.data(),
      .scale = column_scale_.data(),
      .exact = bf16_ ? ExactRows{columns_.data(), padded_, column_inverse_.data()}
                     : ExactRows{exact_columns_.data(), spec_.d_model, column_inverse_.data()},
      .position = position_.data(),
      .flags = flags_.data(),
      .capacity = capacity_,
      .n = counts_before()};
  view.sets = {.status = device_sets_.status(),
               .owner = device_sets_.owner(),
               .cluster = device_sets_.cluster(),
               .cosine = device_sets_.cosine(),
               .stride = device_sets_.stride()};
  return view;
}

KeepView CudaSelector::keep_view(const ChunkView& view, int64_t* products) {
  return {.chunk = view,
          .columns = columns_.data(),
          .column_scale = column_scale_.data(),
          .exact_columns = bf16_ ? nullptr : exact_columns_.data(),
          .column_inverse = column_inverse_.data(),
          .position = position_.data(),
          .flags = flags_.data(),
          .before = counts_before(),
          .after = counts_after(),
          .host_columns = reinterpret_cast<int32_t*>(arriving_.data()),
          .products = products};
}

void CudaSelector::multiply(const ChunkView& view) {
  if (hopper())
    multiply_chunk_hopper(*context_, view);
  else
    multiply_chunk(*context_, view);
}

void CudaSelector::decide_chunk(const Pass& pass, int64_t first, int64_t n) {
  const ConstTensor rows = pass.rows.rows_from(first, n);
  ChunkView view = view_chunk(pass, first, n);
  if (view.rows.inherited == pass.chunk_inherited)
    check(cudaMemcpy2DAsync(pass.chunk_inherited, static_cast<size_t>(n), pass.inherited + first,
                            static_cast<size_t>(pass.rows.rows()), static_cast<size_t>(n),
                            sets_.size(), cudaMemcpyDeviceToDevice, context_->stream()),
          "inherited flags");
  if (covers()) {
    if (can_be_given(rows, padded_)) {
      view.rows.given = reinterpret_cast<const uint16_t*>(rows.bytes());
      view.rows.given_stride = rows.row_stride();
    }
    view.rows.odd = pass.odd.found;
    decide_cover(*context_,
                 {.chunk = view,
                  .whole = n <= kWholeChunk,
                  .given_inverse = pass.inverse + first,
                  .exempt = exempt_args(pass, first, n),
                  .rows = pass.prepared,
                  .scale = pass.scale,
                  .inverse = pass.prepared_inverse,
                  .lists = {pass.lists[0], pass.lists[1]},
                  .listed = pass.listed,
                  .listed_scale = pass.listed_scale,
                  .bits = pass.bits,
                  .tiles = pass.tiles,
                  .some = pass.some,
                  .words = pass.words,
                  .levels = pass.levels,
                  .decision = pass.decision,
                  .marks = pass.marks,
                  .mark_tiles = pass.mark_tiles,
                  .tickets = pass.tickets,
                  .products = device_products_.data(),
                  .basis = view_basis(pass, n)},
                 rows);
  } else {
    prepare_rows(*context_, rows, pass.inverse + first, padded_, pass.prepared, pass.scale,
                 pass.prepared_inverse);
    if (live_) {
      multiply(view);
      judge_chunk(*context_, view);
    }
    resolve_chunk(*context_, view);
    find_owners(*context_, view);
  }
  KeepView keep = keep_view(view, covers() ? nullptr : device_products_.data());
  keep.basis = view_basis(pass, n);
  keep_chunk(*context_, keep);
  counts_index_ = 1 - counts_index_;
}

void CudaSelector::extend(const SelectArgs& args) {
  const int64_t n = args.rows.rows();
  SLUICE_CHECK(args.rows.row_elements() == spec_.d_model);
  if (for_analysis()) return extend_on_host(args);
  SLUICE_CHECK(n_tokens_ == 0 || !owned_anywhere());
  if (n == 0 || (!owned_anywhere() && extend_by_one(args))) return;
  const Pass pass = begin_pass(args);
  for (int64_t first = 0; first < n; first += pass.chunk) {
    const int64_t size = std::min<int64_t>(n - first, pass.chunk);
    decide_chunk(pass, first, size);
    n_tokens_ += size;
  }
  if (owned_anywhere() && live_) find_owners_anywhere(pass);
  send_count();
}

// Owners of a whole sequence, when its representatives are known and kept.
void CudaSelector::find_owners_anywhere(const Pass& pass) {
  for (int64_t first = 0; first < n_tokens_; first += pass.chunk) {
    const int64_t n = std::min<int64_t>(n_tokens_ - first, pass.chunk);
    ChunkView view = view_chunk(pass, first, n);
    view.first = first;
    view.rule = rule_view(SelectRule::kFixed);  // nobody is decided any more
    view.scratch.local = nullptr;
    if (n < n_tokens_)
      prepare_rows(*context_, pass.rows.rows_from(first, n), pass.inverse + first, padded_,
                   pass.prepared, pass.scale, pass.prepared_inverse);
    multiply(view);
    find_owners(*context_, view);
  }
  number_clusters(*context_, {.n = n_tokens_,
                              .n_sets = static_cast<int>(sets_.size()),
                              .set_stride = device_sets_.stride(),
                              .status = device_sets_.status(),
                              .owner = device_sets_.owner(),
                              .cluster = device_sets_.cluster(),
                              .counts = counts_before(),
                              .products = device_products_.data()});
}

}  // namespace sluice::impl::cuda::selection
