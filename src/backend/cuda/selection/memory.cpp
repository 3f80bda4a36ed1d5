// The beginning of a pass: memory for the time being, norms, and tokens that are inherited or, but
// for cascade-cover, exempt.

#include <algorithm>

#include "backend/cuda/selection/pass.h"

namespace sluice::impl::cuda::selection {
namespace {

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

// Tokens that cascade-cover decides together: chunks of n that are alike, whose pieces of columns
// do not take more memory than this.
constexpr int64_t kMostPieceBytes = int64_t{768} << 20;
int64_t cover_chunk(int64_t n, int64_t n_sets, int64_t tiles) {
  constexpr int64_t kRows = 256;  // that the tensor cores take together
  const int64_t token_bytes =
      n_sets * tiles * kPieces * (kPieceColumns + static_cast<int64_t>(sizeof(uint2)));
  const int64_t fit = std::max(kRows, kMostPieceBytes / token_bytes / kRows * kRows);
  const int64_t n_chunks = ceil_div(n, std::min<int64_t>(kCoverChunk, fit));
  return std::min(n, round_up(ceil_div(n, n_chunks), kRows));
}

// What a norm wrote for these rows, as NormsOf has it.
const double* handed_on(const ConstTensor& squares, int64_t n) {
  if (!squares.defined()) return nullptr;
  SLUICE_CHECK(squares.dtype() == DType::kF32 && squares.shape() == Shape({n, 2}) &&
               squares.row_stride() == 4);
  return reinterpret_cast<const double*>(squares.bytes());
}

}  // namespace

CudaSelector::Pass CudaSelector::begin_pass(const SelectArgs& args) {
  const int64_t n = args.rows.rows();
  const auto n_sets = static_cast<int64_t>(sets_.size());
  const bool outliers = spec_.outlier_ratio > 0;
  device_sets_.reserve(n_tokens_ + n, n_tokens_, spec_.want_cosines);
  reserve_columns(live_ ? n : 0, args.rows.dtype() == DType::kBF16);

  Pass pass{};
  pass.rows = args.rows;
  if (outliers) pass.residual = args.residual;
  const int64_t columns = n_columns_ + n;
  // Kept columns and both lists end in a tile that is not full.
  pass.tiles = columns / kHopperGramColumns + 4;
  pass.chunk = covers() ? cover_chunk(n, n_sets, pass.tiles) : std::min<int64_t>(n, kChunk);
  const int64_t row_tiles = ceil_div(pass.chunk, kGramTile);
  // Two blocks to a multiprocessor; on Hopper every tile of columns is looked at by itself.
  pass.splits =
      hopper() ? ceil_div(columns, kHopperGramColumns)
               : std::max<int64_t>(1, std::min(ceil_div(2 * context_->multiprocessors(), row_tiles),
                                               ceil_div(columns, kGramTile)));
  pass.mark_tiles = pass.chunk / kHopperGramColumns + 3;
  pass.words = ceil_div(kPieces * pass.tiles, 32);
  const auto divide = [&](Pieces pieces) {
    const int64_t m = pass.chunk;
    pieces.take(pass.inverse, n);
    if (outliers) pieces.take(pass.residual_inverse, n);
    pieces.take(pass.exempt, n);
    pieces.take(pass.inherited_flags, n_sets * n);
    pieces.take(pass.prepared, m * padded_);
    pieces.take(pass.scale, m);
    pieces.take(pass.prepared_inverse, m);
    pieces.take(pass.chunk_inherited, n_sets * m);
    pieces.take(pass.decision, n_sets * m);
    pieces.take(pass.parts, hopper() ? context_->multiprocessors() * int64_t{kPartSums} : 0);
    if (covers()) {
      for (ListedTokens& list : pass.lists) {
        pieces.take(list.rank, m + 1);
        pieces.take(list.token, m);
      }
      pieces.take(pass.listed, (m + 2 * kHopperGramColumns) * padded_);
      pieces.take(pass.listed_scale, m + 2 * kHopperGramColumns);
      pieces.take(pass.bits, n_sets * m * pass.tiles * kPieces);
      pieces.take(pass.some, n_sets * m * pass.words);
      pieces.take(pass.levels, n_sets * m * pass.tiles * kHopperGramColumns);
      pieces.take(pass.marks, 2 * n_sets * pass.mark_tiles * kPieces);
      pieces.take(pass.tickets, 2);
      if (rank_ > 0) {
        const int64_t items = ceil_div(m, kItemRows) * pass.tiles;
        pieces.take(pass.coordinates, m * width_);
        pieces.take(pass.listed_coordinates, (m + 2 * kHopperGramColumns) * width_);
        pieces.take(pass.rest, m);
        pieces.take(pass.listed_rest, m + 2 * kHopperGramColumns);
        pieces.take(pass.open, items);
        pieces.take(pass.below, items);
        pieces.take(pass.again, 2 * items);
      }
    } else {
      pieces.take(pass.local, m * kChunk);
      pieces.take(pass.largest, n_sets * 2 * pass.splits * m);
      pieces.take(pass.conflicts, n_sets * m * kWords);
      pieces.take(pass.sure, n_sets * 3 * kWords);
    }
    return pieces.used();
  };
  divide(Pieces(context_->scratch(divide(Pieces(nullptr)))));

  odd_index_ = 1 - odd_index_;
  pass.odd = {odd_.data() + odd_index_, odd_.data() + 1 - odd_index_};
  const ExemptArgs exempt = exempt_args(pass, 0, n);
  std::vector<NormsOf> norms = {
      {.rows = args.rows, .out = pass.inverse, .squares = handed_on(args.row_squares, n)}};
  if (outliers)
    norms.push_back({.rows = args.residual,
                     .out = pass.residual_inverse,
                     .n_ordered = exempt.n_ordered(),
                     .squares = handed_on(args.residual_squares, n)});
  inverse_norms(*context_, norms, pass.odd);
  if (!covers()) mark_exempt(*context_, exempt);  // otherwise chunk by chunk
  mark_inherited(args, pass);
  return pass;
}

// Tokens [first, first + n) of a pass, when those before them are decided.
ExemptArgs CudaSelector::exempt_args(const Pass& pass, int64_t first, int64_t n) const {
  ExemptArgs args{.first = n_tokens_,
                  .n = n,
                  .sinks = spec_.sinks,
                  .ratio = spec_.outlier_ratio,
                  .residual_inverse = nullptr,
                  .state = median_state_.data(),
                  .exempt = pass.exempt + first};
  if (pass.residual_inverse == nullptr) return args;
  const ConstTensor residual = pass.residual.rows_from(first, n);
  args.residual_inverse = pass.residual_inverse + first;
  args.residual = residual.bytes();
  args.d = residual.row_elements();
  args.residual_stride = residual.row_stride();
  args.residual_bf16 = residual.dtype() == DType::kBF16;
  return args;
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

}  // namespace sluice::impl::cuda::selection
