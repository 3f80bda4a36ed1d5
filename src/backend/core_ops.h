// What every backend does other than attention, selection and subspaces: memory, and the
// operations between them. Tensors live on the backend's device. They are row-major, one row per
// token; a batch of equally long sequences is stacked, so n_rows = n_batch * n_tokens.
//
// Activations have the compute dtype (f32 or bf16), the residual stream and all sums are f32.

#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"

namespace sluice::impl {

enum class Activation : uint8_t { kNone, kRelu, kGeluErf, kGeluTanh, kSilu };
enum class NormKind : uint8_t { kLayer, kRms };
enum class RotaryStyle : uint8_t {
  kHalves,       // pairs (i, i + rotary_dim / 2): Llama, ESM-2
  kInterleaved,  // pairs (2i, 2i + 1): GPT-J, Llama in GGUF
};

// Rows [begin, end) of a matrix as they lie in memory: one after the other, in the element type of
// their file, which may be a block type. Any alignment.
struct StoredRows {
  int64_t begin = 0, end = 0;
  DType dtype = DType::kF32;
  const std::byte* bytes = nullptr;
};

// A weight matrix (n_out, n_in) that is read piece by piece while it is packed, so that a
// float32 copy of the whole never exists.
struct MatrixSource {
  int64_t n_out = 0;
  int64_t n_in = 0;
  // Writes rows [begin, end) to out, row-major. Called from several threads.
  std::function<void(int64_t begin, int64_t end, float* out)> read_rows;
  std::vector<float> bias;  // (n_out), or empty
  // The same rows as they are stored, in order and without gaps: for a backend that multiplies
  // blocks as they are. Empty where some of them are stored otherwise. The memory outlives the
  // packed weights where `owner` is empty, and lives as long as `owner` where it is not.
  std::vector<StoredRows> stored = {};
  std::shared_ptr<const void> owner = {};
};

// A matrix in the form one backend multiplies with.
class LinearWeights {
 public:
  virtual ~LinearWeights() = default;
  int64_t n_out() const { return n_out_; }
  int64_t n_in() const { return n_in_; }
  int64_t bytes() const { return bytes_; }  // what one pass over the weights reads

 protected:
  LinearWeights(int64_t n_out, int64_t n_in, int64_t bytes)
      : n_out_(n_out), n_in_(n_in), bytes_(bytes) {}

 private:
  int64_t n_out_, n_in_, bytes_;
};

// A table whose rows are looked up by id.
class Table {
 public:
  virtual ~Table() = default;
};

struct EmbedArgs {
  const Table* table;
  std::span<const int32_t> ids;    // (n_rows), host memory
  float scale = 1.0f;              // of every row
  std::optional<int32_t> zero_id;  // rows of this id are zero (a masked token under ESM-2)
  bool accumulate = false;         // add to out instead of replacing it
  Tensor out;                      // (n_rows, d) f32
};

struct NormArgs {
  NormKind kind;
  float epsilon;
  ConstTensor x;       // (n_rows, d) f32 or compute dtype
  ConstTensor weight;  // (d) f32, or undefined for ones
  ConstTensor bias;    // (d) f32, or undefined for zeros
  Tensor out;          // (n_rows, d), may be x itself
  // (n_rows, 4) f32, memory for two float64 a row: sums of squares of x as it was, and of out as it
  // is stored, for a selector. Undefined where nobody asks; only with writes_squares().
  Tensor squares = {};
};
// Either half of them, as SelectArgs has it; undefined where they are.
inline ConstTensor squares_of_x(const ConstTensor& squares) {
  return squares.defined() ? squares.columns_from(0, 2) : squares;
}
inline ConstTensor squares_of_out(const ConstTensor& squares) {
  return squares.defined() ? squares.columns_from(2, 2) : squares;
}

// RMS norm of every head of queries and keys, each with a weight of its own.
struct HeadNormArgs {
  float epsilon;
  ConstTensor query_weight;  // (head_dim) f32
  ConstTensor key_weight;    // (head_dim) f32
  int64_t n_queries;         // the first heads of a row; its other heads are keys
  Tensor x;                  // (n_rows, n_heads + n_kv_heads, head_dim), normed in place
};

// out = activation(x W^T + bias), or out += x W^T + bias.
struct LinearArgs {
  const LinearWeights* weights;
  ConstTensor x;  // (n_rows, n_in)
  Activation activation = Activation::kNone;
  bool accumulate = false;  // with f32 out and no activation
  Tensor out;               // (n_rows, n_out) f32 or compute dtype
};

struct RotaryArgs {
  RotaryStyle style;
  ConstTensor cosine;      // (n_positions, rotary_dim / 2) f32
  ConstTensor sine;        // (n_positions, rotary_dim / 2) f32
  int64_t n_tokens;        // rows per sequence
  int64_t first_position;  // of the first row of each sequence
  // (n_rows), when the rows are not consecutive; n_tokens and first_position are then unused.
  std::span<const int32_t> positions = {};
  Tensor x;  // (n_rows, n_heads, head_dim), rotated in place
};

// out = activation(gate) * up, where gate_up holds both side by side.
struct GluArgs {
  Activation activation;
  ConstTensor gate_up;  // (n_rows, 2 * d_inner)
  Tensor out;           // (n_rows, d_inner)
};

class CoreOps {
 public:
  virtual ~CoreOps() = default;
  virtual std::string_view name() const = 0;
  virtual std::string description() const = 0;  // instruction set or device, for people
  virtual Device device() const = 0;
  virtual DType compute_dtype() const = 0;

  virtual Buffer allocate(DType dtype, Shape shape) = 0;       // zeroed
  virtual void upload(ConstTensor host, Tensor device) = 0;    // same dtype and shape
  virtual void download(ConstTensor device, Tensor host) = 0;  // waits until it is there
  // Until all that was asked for is done. A device may still be at work when an operation returns;
  // only whoever reads a clock needs to know.
  virtual void wait() {}

  virtual std::unique_ptr<LinearWeights> pack_linear(MatrixSource source) = 0;
  virtual std::unique_ptr<Table> make_table(MatrixSource source) = 0;

  virtual void embed(const EmbedArgs& args) = 0;
  virtual void norm(const NormArgs& args) = 0;
  // Whether norm() writes NormArgs::squares, and selection has use for them.
  virtual bool writes_squares() const { return false; }
  virtual void norm_heads(const HeadNormArgs& args) = 0;
  virtual void linear(const LinearArgs& args) = 0;
  virtual void rotate(const RotaryArgs& args) = 0;
  virtual void glu(const GluArgs& args) = 0;
  virtual void convert(ConstTensor from, Tensor to) = 0;  // (n_rows, d), f32 <-> compute dtype
  // to[i] = from[rows[i]]; both (…, d) of one dtype.
  virtual void gather_rows(ConstTensor from, std::span<const int32_t> rows, Tensor to) = 0;
  // x = cap * tanh(x / cap), cap > 0; (n_rows, d) f32.
  virtual void soft_cap(float cap, Tensor x) = 0;
  // to[i] += from[rows[i]], or from[i] where `rows` is empty; both (…, d) f32.
  virtual void add_rows(ConstTensor from, std::span<const int32_t> rows, Tensor to) = 0;
};

}  // namespace sluice::impl
