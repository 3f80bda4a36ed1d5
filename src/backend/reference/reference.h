// The reference backend: docs/algorithm.md as plain loops. Sums are float64 in index order, and
// results are rounded once, to the dtype of the output. Never optimised.

#pragma once

#include "backend/backend.h"

namespace sluice::impl::reference {

// Element (row, column) of a tensor, its inner axes taken as one.
float load(const ConstTensor& x, int64_t row, int64_t column);
void store(const Tensor& x, int64_t row, int64_t column, float value);

float activate(Activation activation, float x);

struct Weights final : LinearWeights {
  Weights(const MatrixSource& source, DType dtype);
  Buffer rows;              // (n_out, n_in) compute dtype
  std::vector<float> bias;  // (n_out), or empty
};

struct Columns final : ColumnWeights {
  Columns(MatrixSource source, DType dtype);
  Weights weights;
};

struct Basis final : SubspaceBasis {
  Basis(std::span<const float> values, int64_t rank, int64_t n_in, DType dtype);
  Buffer vectors;  // (rank, n_in) compute dtype
};

struct Rows final : Table {
  explicit Rows(MatrixSource matrix) : source(std::move(matrix)) {}
  MatrixSource source;
};

// Rows of all passes so far, in the dtype they came in.
class KeptRows {
 public:
  void append(const ConstTensor& rows);
  void clear() { *this = {}; }
  void drop_last();
  ConstTensor view() const { return buffer_.view(); }  // (n_rows, row_elements)
  int64_t size() const { return n_rows_; }
  int64_t bytes() const;

 private:
  Buffer buffer_;
  int64_t n_rows_ = 0;
};

// A key and its value, head_dim numbers each, that stand for `count` tokens.
struct CountedKey {
  double count;
  std::vector<double> key, value;
};
// One for every row of keys and values (n_rows, n_kv_heads * head_dim), of count 1.
std::vector<CountedKey> counted_keys(const KeptRows& keys, const KeptRows& values, int64_t kv_head,
                                     int64_t head_dim);

// One query head: out = sum p_j value_j, p the softmax of q . key_j * scale + log count_j.
struct AttendHeadArgs {
  ConstTensor queries;  // (n_rows, n_heads, head_dim)
  int64_t row, head;
  double scale;
  std::span<const CountedKey* const> keys;
  Tensor out;  // (n_rows, n_heads, head_dim)
};
// Returns the log of the sum of exp of the scores.
double attend_head(const AttendHeadArgs& args);

void embed(const EmbedArgs& args);
void norm(const NormArgs& args);
void linear(const LinearArgs& args);
void project(const ProjectArgs& args);
void grade(const GradeArgs& args);
void linear_columns(const LinearColumnsArgs& args);
std::unique_ptr<LinearWeights> pack_image(const MatrixSource& source, const SubspaceBasis& basis,
                                          DType dtype);
void rotate(const RotaryArgs& args);
void store_kv(const StoreKvArgs& args);
void attend_dense(const AttendDenseArgs& args);
void glu(const GluArgs& args);
void convert(ConstTensor from, Tensor to);
void gather_rows(ConstTensor from, std::span<const int32_t> rows, Tensor to);
void add_rows(ConstTensor from, std::span<const int32_t> rows, Tensor to);

std::unique_ptr<Selector> make_selector(const SelectorSpec& spec);
std::unique_ptr<KeysAttention> make_keys_attention(const KeysSpec& spec);
std::unique_ptr<RepsAttention> make_reps_attention(const RepsSpec& spec);
std::unique_ptr<RefineAttention> make_refine_attention(const RefineSpec& spec);

}  // namespace sluice::impl::reference
