// What the selector asks of the device, and what the kernels share. docs/algorithm.md, sections 1
// and 2.
//
// Tokens are decided in chunks. A chunk's rows are multiplied with the columns kept from all tokens
// before, tile by tile, and each row keeps its three largest cosines per split of the columns; the
// chunk's products with itself are small enough to be written out. bf16 products err by less than
// `slack`: what lies nearer to a threshold, or to another candidate, is summed in float64, and what
// even that leaves open, in the order that defines it. So sets and owners are the reference's.
//
// Operations per chunk: 2 d n (K + n / 2) for n rows and K columns, all on tensor cores; bytes:
// 2 d (K + n) from memory once, from L2 again for each of n / 128 row tiles.
//
// cascade-cover on Hopper has its own path (selection/common/cover_view.h): a token is compared
// with the inherited ones before it and with those found to be uncovered, 2 d n (K + (inherited +
// uncovered) / 2) operations.

#pragma once

#include <algorithm>
#include <span>

#include "backend/cuda/runtime/device.h"
#include "backend/cuda/selection/common/basis_view.h"
#include "backend/select.h"
#include "core/tensor.h"

namespace sluice::impl::cuda::selection {

constexpr int kChunk = 4096;        // tokens decided together
constexpr int kCoverChunk = 16384;  // the same where tokens are compared with listed ones alone
constexpr int kWholeChunk = 2048;   // the same where all are listed: products in one round, not two
constexpr int kWords = kChunk / 32;  // of bits, one per token of a chunk
constexpr int kGramTile = 128;       // rows and columns of a tile
constexpr int kHopperGramColumns = 256;
constexpr int kPieces = 8, kPieceColumns = 32;  // of such a tile, of such a piece (CoverView::bits)

// For whom a column counts, per set.
enum ColumnFlag : uint8_t {
  kIsRep = 1,
  kIsKept = 2,  // representative and inherited
  kIsInherited = 4,
  kIsAny = 8,
};

// What decides a token that is not exempt.
struct RuleView {
  bool absolute = false;                       // cosines by size
  bool fixed = false;                          // inheritance alone
  uint8_t plain = kIsRep, inherited = kIsRep;  // columns that a token, or an inherited one, is
                                               // compared with

  __host__ __device__ uint8_t deciding(bool is_inherited) const {
    return is_inherited ? inherited : plain;
  }
  // Whether a token is decided by other columns, or by another size, than its owner.
  __host__ __device__ bool apart(bool is_inherited) const {
    return absolute || deciding(is_inherited) != kIsRep;
  }
  __host__ __device__ uint8_t used() const {
    return static_cast<uint8_t>(kIsRep | (fixed ? 0 : plain | inherited));
  }
};
RuleView rule_view(SelectRule rule);

// The largest cosines of a row within one split of the columns.
struct Largest {
  float first, second, third;
  int32_t column, second_column;
};

// Rows as the decision wants them: bf16 rows as they are, but for a power of two, else the f32 ones
// they came from.
struct ExactRows {
  const void* data;
  int64_t stride;         // in elements
  const double* inverse;  // 1 / norm, of these very numbers; how near to it: norm_error(d)
};

// Hopper's tiles are divided in depth where there are few of them: sums of one part per
// multiprocessor, and how many parts of a tile have arrived, zero between launches.
constexpr int kPartSums = 32 * 256;  // float4
struct GramParts {
  float4* sums = nullptr;      // (multiprocessors, kPartSums)
  int32_t* arrived = nullptr;  // (multiprocessors)
};

// The rows of a chunk. Rows that the tensor cores take as they are given are not prepared, unless
// *odd.
struct ChunkRows {
  const uint16_t* prepared = nullptr;  // (n, padded) bf16
  const uint16_t* given = nullptr;     // (n, d) bf16, or nullptr
  int64_t given_stride = 0;
  const int32_t* odd = nullptr;  // whether a given row leaves the range of f32
  const float* scale = nullptr;  // (n) 1 / norm
  ExactRows exact{};
  const uint8_t* exempt = nullptr;     // (n)
  const uint8_t* inherited = nullptr;  // (n_sets, n) flags, or statuses in the layer before
};

// What a chunk's products leave to its decision.
struct DecisionScratch {
  // (n, kChunk) cosines with tokens of the chunk before; nullptr: kept columns are all there is
  float* local = nullptr;
  Largest* largest = nullptr;     // (n_sets, 2, n_splits, n): of owners, of what decides
  uint32_t* conflicts = nullptr;  // (n_sets, n, kWords) bits: at the threshold
  uint32_t* sure = nullptr;       // (n_sets, 3, kWords) bits of what needs no order
  uint8_t* decision = nullptr;    // (n_sets, n)
};

// Columns kept from all tokens before a chunk.
struct KeptColumns {
  const uint16_t* prepared = nullptr;  // (*n, padded) bf16
  const float* scale = nullptr;
  ExactRows exact{};
  const int32_t* position = nullptr;
  const uint8_t* flags = nullptr;  // (n_sets, capacity)
  int64_t capacity = 0;
  const int32_t* n = nullptr;
};

// The sets that are written, of whole sequences: (n_sets, stride).
struct SetsView {
  uint8_t* status = nullptr;
  int32_t* owner = nullptr;
  int32_t* cluster = nullptr;
  float* cosine = nullptr;
  int64_t stride = 0;
};

// A chunk and how it is decided.
struct ChunkView {
  int64_t n = 0, first = 0;   // tokens; position of the first
  int64_t d = 0, padded = 0;  // of a row, and rounded up for whole tiles
  int n_sets = 0;
  // Column tiles s, s + n_splits, … are split s.
  int n_splits = 1, tile_columns = kGramTile;
  RuleView rule;
  double slack = 0;  // that a bf16 product may err by
  bool bf16 = false, want_cosines = false;
  const double* thresholds = nullptr;  // (n_sets); 0 for tau 0: every token represents itself
  ChunkRows rows = {};
  DecisionScratch scratch = {};
  KeptColumns kept = {};
  GramParts parts = {};
  SetsView sets = {};

  __device__ bool is_inherited(int set, int64_t t) const {
    constexpr auto kRep = static_cast<uint8_t>(TokenStatus::kRepresentative);
    constexpr auto kExempt = static_cast<uint8_t>(TokenStatus::kExempt);
    static_assert(kRep == 1, "as a flag is");
    const uint8_t found = rows.inherited[set * n + t];
    return found == kRep || found == kExempt;
  }
};

// What the first look says of a token.
enum Decision : uint8_t {
  kFree = 0,       // no earlier token can cover it
  kContested = 1,  // earlier tokens of its chunk may cover it
  kBlocked = 2,    // an earlier column covers it
};

// selection/tokens/norms.cu
// 1 / norm of each row; out: (rows), 0 for rows of zeros. Of one tensor, or of two of one shape.
struct NormsOf {
  ConstTensor rows;
  double* out;
  int64_t n_ordered = 0;  // first rows whose squares are summed in index order, not in any
  // (rows, 2) of which the first: sums of squares in any order; or nullptr: to be found.
  const double* squares = nullptr;
};
// Whether a row of the first leaves the range of f32: *found, which was 0, becomes 1. *next becomes
// 0. Or both are nullptr.
struct OddRows {
  int32_t *found = nullptr, *next = nullptr;
};
void inverse_norms(Context& context, std::span<const NormsOf> of, const OddRows& odd);
// selection/tokens/rows.cu
// bf16 rows for the tensor cores: (rows, padded), with 1 / norm of what is written.
void prepare_rows(Context& context, const ConstTensor& rows, const double* inverse, int64_t padded,
                  uint16_t* out, float* scale, double* prepared_inverse);
// selection/tokens/exempt.cu: exempt tokens of n.
constexpr int64_t kMedianTokens = 256, kMedianState = kMedianTokens + 1;
struct ExemptArgs {
  int64_t first, n, sinks;  // position of the first token
  double ratio;
  const double* residual_inverse;  // (n), or nullptr without outliers
  double* state;  // (kMedianState) the first norms and, when these are all there, their median
  uint8_t* exempt;
  // (n, d) the rows, where norms were summed in any order but for those that the median is of: in
  // doubt they are summed again. nullptr: they were all summed in order.
  const void* residual = nullptr;
  int64_t d = 0, residual_stride = 0;
  bool residual_bf16 = false;

  // Tokens, from the first on, whose norms the median may be of.
  int64_t n_ordered() const { return std::clamp<int64_t>(sinks + kMedianTokens - first, 0, n); }
};
void mark_exempt(Context& context, const ExemptArgs& args);

// selection/gram/gram.cu
void multiply_chunk(Context& context, const ChunkView& view);
// The same on compute capability 9.0; n_splits is at least the number of column tiles.
void multiply_chunk_hopper(Context& context, const ChunkView& view);

// selection/tokens/decide.cu
void judge_chunk(Context& context, const ChunkView& view);    // decisions and conflicts
void resolve_chunk(Context& context, const ChunkView& view);  // statuses, in order of position
// selection/tokens/owners.cu
void find_owners(Context& context, const ChunkView& view);
// Numbers the clusters of a whole sequence anew.
struct NumberView {
  int64_t n;
  int n_sets;
  int64_t set_stride;
  const uint8_t* status;
  const int32_t* owner;
  int32_t* cluster;
  int32_t* counts;    // columns, and clusters per set
  int64_t* products;  // that were made with all columns are added
};
void number_clusters(Context& context, const NumberView& view);

// selection/tokens/keep.cu
struct KeepView {
  ChunkView chunk;
  uint16_t* columns;
  float* column_scale;
  float* exact_columns;  // (capacity, d) f32, or nullptr where the columns are exact
  double* column_inverse;
  int32_t* position;
  uint8_t* flags;
  // How many columns there are, and clusters in each set: before this chunk, and behind it.
  const int32_t* before;
  int32_t* after;
  int32_t* host_columns;  // in pinned memory: after[0], and whether a basis is given up
  int64_t* products;      // to be added to, or nullptr
  BasisView basis = {};   // columns take their coordinates along
};
// Numbers the clusters, and keeps what later tokens are compared with.
void keep_chunk(Context& context, const KeepView& view);

// selection/tokens/one.cu: a token by itself. `keep.chunk` has no rows but the exact ones, as
// given.
struct OneView {
  KeepView keep;
  ExemptArgs exempt;
  double *inverse, *residual_inverse;  // (1) to be written, and read by the others
  float* cosines;                      // (n_columns)
  int32_t* arrived;                    // zero between launches
};
// residual: nullptr without outliers.
bool can_decide_one(const ConstTensor& rows, const ConstTensor* residual);
void decide_one(Context& context, const OneView& view, const ConstTensor* residual,
                int64_t n_columns);

}  // namespace sluice::impl::cuda::selection
