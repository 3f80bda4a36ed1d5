// One pass of the selector: memory for the time being, and one chunk of tokens after the other.

#include <algorithm>

#include "backend/cuda/selector.h"

namespace sluice::cuda {
namespace {

// What a bf16 product may err by, as a cosine. The matrix units add 16 products at a time, or twice
// 8, to a sum, aligned to the largest of these numbers and cut off below its 23rd bit: at most
// 18 / 16 units of 2^-23 per element, of numbers that no product of unit rows makes larger than 1.
// The rest is for norms and unit elements in f32. Rows that were f32 lose 2^-9 of each element, in
// both factors.
double product_error(int64_t padded, bool bf16) {
  const double sums = (1.25 * static_cast<double>(padded) + 16) * 0x1p-23;
  return bf16 ? sums : sums + 1.01 * 0x1p-8;
}

// Scratch memory handed out piece by piece; without memory the pieces are only counted.
class Pieces {
 public:
  explicit Pieces(void* memory) : memory_(static_cast<std::byte*>(memory)) {}
  template <typename T>
  void take(T*& to, int64_t n) {
    to = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + used_);
    used_ += round_up(n * static_cast<int64_t>(sizeof(T)), 256);
  }
  int64_t used() const { return used_; }

 private:
  std::byte* memory_;
  int64_t used_ = 0;
};

constexpr int64_t kMostLevels = int64_t{1} << 30;  // bytes

// Whether the matrix units can take the rows where they are.
bool can_be_given(const ConstTensor& rows, int64_t padded) {
  return rows.dtype() == DType::kBF16 && rows.row_elements() == padded &&
         rows.row_stride() % 8 == 0 && reinterpret_cast<uintptr_t>(rows.bytes()) % 16 == 0;
}

}  // namespace

// Lives in the context's scratch memory, which nobody else asks for during a pass.
struct CudaSelector::Pass {
  ConstTensor rows;
  int64_t chunk, splits, tiles;        // tokens at a time; of the columns; room for tiles of them
  double *inverse, *residual_inverse;  // (rows)
  uint8_t* exempt;                     // (rows)
  const uint8_t* inherited;            // (n_sets, rows)
  uint8_t* inherited_flags;            // the same, where they must be put together

  // Of a chunk: ChunkView and CoverView have the shapes.
  uint16_t* prepared;
  float* scale;
  double* prepared_inverse;
  uint8_t *chunk_inherited, *verdict;
  float* local;
  Largest* largest;
  uint32_t *conflicts, *sure;

  // The same for cascade-cover.
  ListedTokens lists[2];
  uint16_t* listed;
  float* listed_scale;
  uint2* bits;
  uint32_t* some;
  int64_t words;
  uint8_t* levels;
  int32_t *odd, *tickets;
  unsigned long long* marks;
  int64_t mark_tiles;
  float4* parts;
};

CudaSelector::Pass CudaSelector::begin_pass(const SelectArgs& args) {
  const int64_t n = args.rows.rows();
  const auto n_sets = static_cast<int64_t>(sets_.size());
  const bool outliers = spec_.outlier_ratio > 0;
  device_sets_.reserve(n_tokens_ + n, n_tokens_, spec_.want_cosines);
  reserve_columns(live_ ? n : 0, args.rows.dtype() == DType::kBF16);

  Pass pass{};
  pass.rows = args.rows;
  pass.chunk = std::min<int64_t>(n, covers() ? kCoverChunk : kChunk);
  const int64_t row_tiles = ceil_div(pass.chunk, kGramTile), columns = n_columns_ + n;
  // Two blocks to a multiprocessor; on Hopper every tile of columns is looked at by itself.
  pass.splits =
      hopper() ? ceil_div(columns, kHopperGramColumns)
               : std::max<int64_t>(1, std::min(ceil_div(2 * context_->multiprocessors(), row_tiles),
                                               ceil_div(columns, kGramTile)));
  // Kept columns and both lists end in a tile that is not full.
  pass.tiles = columns / kHopperGramColumns + 4;
  pass.mark_tiles = pass.chunk / kHopperGramColumns + 3;
  pass.words = ceil_div(8 * pass.tiles, 32);
  const int64_t levels = n_sets * pass.chunk * pass.tiles * kHopperGramColumns;
  const auto divide = [&](Pieces pieces) {
    const int64_t m = pass.chunk;
    pieces.take(pass.inverse, n);
    pieces.take(pass.residual_inverse, outliers ? n : 0);
    pieces.take(pass.exempt, n);
    pieces.take(pass.inherited_flags, n_sets * n);
    pieces.take(pass.prepared, m * padded_);
    pieces.take(pass.scale, m);
    pieces.take(pass.prepared_inverse, m);
    pieces.take(pass.chunk_inherited, n_sets * m);
    pieces.take(pass.verdict, n_sets * m);
    pieces.take(pass.parts, hopper() ? context_->multiprocessors() * int64_t{kPartSums} : 0);
    if (covers()) {
      for (ListedTokens& list : pass.lists) {
        pieces.take(list.rank, m + 1);
        pieces.take(list.token, m);
      }
      pieces.take(pass.listed, (m + 2 * kHopperGramColumns) * padded_);
      pieces.take(pass.listed_scale, m + 2 * kHopperGramColumns);
      pieces.take(pass.bits, n_sets * m * pass.tiles * 8);
      pieces.take(pass.some, n_sets * m * pass.words);
      if (levels <= kMostLevels) pieces.take(pass.levels, levels);
      pieces.take(pass.marks, 2 * n_sets * pass.mark_tiles * 8);
      pieces.take(pass.odd, 1);
      pieces.take(pass.tickets, 2);
    } else {
      pieces.take(pass.local, m * kChunk);
      pieces.take(pass.largest, n_sets * 2 * pass.splits * m);
      pieces.take(pass.conflicts, n_sets * m * kWords);
      pieces.take(pass.sure, n_sets * 3 * kWords);
    }
    return pieces.used();
  };
  divide(Pieces(context_->scratch(divide(Pieces(nullptr)))));

  std::vector<NormsOf> norms = {{args.rows, pass.inverse}};
  if (outliers) norms.push_back({args.residual, pass.residual_inverse});
  ordered_inverse_norms(*context_, norms, pass.odd);
  mark_exempt(*context_, {.first = n_tokens_,
                          .n = n,
                          .sinks = spec_.sinks,
                          .ratio = spec_.outlier_ratio,
                          .residual_inverse = outliers ? pass.residual_inverse : nullptr,
                          .state = median_state_.data(),
                          .exempt = pass.exempt,
                          .inverse = pass.inverse,
                          .odd = pass.odd});
  mark_inherited(args, pass);
  return pass;
}

void CudaSelector::mark_inherited(const SelectArgs& args, Pass& pass) {
  const auto n_sets = static_cast<int64_t>(sets_.size());
  const int64_t n = args.rows.rows();
  pass.inherited = pass.inherited_flags;
  if (!inherits(spec_.rule)) {
    check(cudaMemsetAsync(pass.inherited_flags, 0, static_cast<size_t>(n_sets * n),
                          context_->stream()),
          "inherited flags");
    return;
  }
  SLUICE_CHECK(args.inherited.size() == sets_.size());
  for (size_t i = 0; i < sets_.size(); ++i) {
    uint8_t* flags = pass.inherited_flags + static_cast<int64_t>(i) * n;
    const Inherited& from = args.inherited[i];
    if (const auto* above = dynamic_cast<const CudaSelector*>(from.above())) {
      SLUICE_CHECK(above->n_decided() >= n_tokens_ + n);
      const uint8_t* status = above->device_sets().status(from.set()) + n_tokens_;
      if (n_sets == 1)
        pass.inherited = status;
      else
        check(cudaMemcpyAsync(flags, status, static_cast<size_t>(n), cudaMemcpyDeviceToDevice,
                              context_->stream()),
              "statuses in the layer before");
    } else {
      std::vector<uint8_t> given = from.flags(n_tokens_, n);
      for (uint8_t& flag : given) flag = flag != 0 ? 1 : 0;
      context_->send(given.data(), flags, n);
    }
  }
}

// Tokens [first, first + n) of the pass.
ChunkView CudaSelector::view_chunk(const Pass& pass, int64_t first, int64_t n) const {
  const ConstTensor rows = pass.rows.rows_from(first, n);
  ChunkView view;
  view.n = n;
  view.first = n_tokens_;
  view.d = spec_.d_model;
  view.padded = padded_;
  view.n_sets = static_cast<int>(sets_.size());
  view.n_splits = static_cast<int>(pass.splits);
  view.tile_columns = hopper() ? kHopperGramColumns : kGramTile;
  view.rule = rule_view(spec_.rule);
  view.slack = product_error(padded_, bf16_);
  view.bf16 = bf16_;
  view.want_cosines = spec_.want_cosines;
  view.thresholds = thresholds_.data();
  view.rows = pass.prepared;
  view.scale = pass.scale;
  view.exact = bf16_ ? ExactRows{pass.prepared, padded_, pass.prepared_inverse}
                     : ExactRows{rows.bytes(), rows.row_stride(), pass.inverse + first};
  view.exempt = pass.exempt + first;
  // Flags of several sets are wanted one behind the other.
  view.inherited = view.n_sets == 1        ? pass.inherited + first
                   : n == pass.rows.rows() ? pass.inherited
                                           : pass.chunk_inherited;
  view.local = pass.local;
  view.largest = pass.largest;
  view.conflicts = pass.conflicts;
  view.sure = pass.sure;
  view.verdict = pass.verdict;
  view.columns = columns_.data();
  view.column_scale = column_scale_.data();
  view.exact_columns =
      bf16_ ? ExactRows{columns_.data(), padded_, column_inverse_.data()}
            : ExactRows{exact_columns_.data(), spec_.d_model, column_inverse_.data()};
  view.position = position_.data();
  view.flags = flags_.data();
  view.capacity = capacity_;
  view.n_columns = counts_before();
  if (hopper()) view.parts = {pass.parts, parts_arrived_.data()};
  view.status = device_sets_.status();
  view.owner = device_sets_.owner();
  view.cluster = device_sets_.cluster();
  view.cosine = device_sets_.cosine();
  view.set_stride = device_sets_.stride();
  return view;
}

void CudaSelector::decide_chunk(const Pass& pass, int64_t first, int64_t n) {
  const ConstTensor rows = pass.rows.rows_from(first, n);
  ChunkView view = view_chunk(pass, first, n);
  if (view.inherited == pass.chunk_inherited)
    check(cudaMemcpy2DAsync(pass.chunk_inherited, static_cast<size_t>(n), pass.inherited + first,
                            static_cast<size_t>(pass.rows.rows()), static_cast<size_t>(n),
                            sets_.size(), cudaMemcpyDeviceToDevice, context_->stream()),
          "inherited flags");
  if (covers()) {
    if (can_be_given(rows, padded_)) {
      view.given = reinterpret_cast<const uint16_t*>(rows.bytes());
      view.given_stride = rows.row_stride();
    }
    view.odd = pass.odd;
    decide_cover(*context_,
                 {.chunk = view,
                  .given_inverse = pass.inverse + first,
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
                  .verdict = pass.verdict,
                  .marks = pass.marks,
                  .mark_tiles = pass.mark_tiles,
                  .tickets = pass.tickets,
                  .products = device_products_.data()},
                 rows);
  } else {
    prepare_rows(*context_, rows, pass.inverse + first, padded_, pass.prepared, pass.scale,
                 pass.prepared_inverse);
    if (live_) {
      if (hopper())
        multiply_chunk_hopper(*context_, view);
      else
        multiply_chunk(*context_, view);
      judge_chunk(*context_, view);
    }
    resolve_chunk(*context_, view);
    find_owners(*context_, view);
  }
  keep_chunk(*context_, {.chunk = view,
                         .columns = columns_.data(),
                         .column_scale = column_scale_.data(),
                         .exact_columns = bf16_ ? nullptr : exact_columns_.data(),
                         .column_inverse = column_inverse_.data(),
                         .position = position_.data(),
                         .flags = flags_.data(),
                         .before = counts_before(),
                         .after = counts_after(),
                         .host_columns = reinterpret_cast<int32_t*>(arriving_.data()),
                         .products = covers() ? nullptr : device_products_.data()});
  counts_turn_ = 1 - counts_turn_;
}

void CudaSelector::extend(const SelectArgs& args) {
  const int64_t n = args.rows.rows();
  SLUICE_CHECK(args.rows.row_elements() == spec_.d_model);
  if (looks_ahead()) return extend_on_host(args);
  if (n == 0) return;
  const Pass pass = begin_pass(args);
  for (int64_t first = 0; first < n; first += pass.chunk) {
    const int64_t size = std::min<int64_t>(n - first, pass.chunk);
    decide_chunk(pass, first, size);
    n_tokens_ += size;
  }
  send_count();
}

}  // namespace sluice::cuda
