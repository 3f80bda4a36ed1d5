// The seam between the model and the hardware. A backend owns memory on its device and answers
// the operations below; tensors passed to it live on that device. Row-major everywhere, one row
// per token; a batch of equally long sequences is stacked, so n_rows = n_batch * n_tokens.
//
// Activations have the compute dtype (f32 or bf16), the residual stream and all sums are f32.

#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "backend/attend.h"
#include "backend/baseline.h"
#include "backend/refine.h"
#include "backend/scores.h"
#include "backend/select.h"
#include "backend/subspace.h"
#include "core/tensor.h"

namespace sluice::impl {

enum class Activation : uint8_t { kNone, kRelu, kGeluErf, kGeluTanh, kSilu };
enum class NormKind : uint8_t { kLayer, kRms };
enum class RotaryStyle : uint8_t {
  kHalves,       // pairs (i, i + rotary_dim / 2): Llama, ESM-2
  kInterleaved,  // pairs (2i, 2i + 1): GPT-J, Llama in GGUF
};

// A weight matrix (n_out, n_in) that is read piece by piece while it is packed, so that a
// float32 copy of the whole never exists.
struct MatrixSource {
  int64_t n_out = 0;
  int64_t n_in = 0;
  // Writes rows [begin, end) to out, row-major. Called from several threads.
  std::function<void(int64_t begin, int64_t end, float* out)> read_rows;
  std::vector<float> bias;  // (n_out), or empty
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
  // is stored, for a selector. Undefined where nobody asks; only with hands_on_squares().
  Tensor squares = {};
};
// Either half of them, as SelectArgs has it; undefined where they are.
inline ConstTensor squares_of_x(const ConstTensor& squares) {
  return squares.defined() ? squares.columns_from(0, 2) : squares;
}
inline ConstTensor squares_of_out(const ConstTensor& squares) {
  return squares.defined() ? squares.columns_from(2, 2) : squares;
}

// out = activation(x W^T + bias), or out += x W^T + bias.
struct LinearArgs {
  const LinearWeights* weights;
  ConstTensor x;  // (n_rows, n_in)
  Activation activation = Activation::kNone;
  bool accumulate = false;  // with f32 out and no activation
  Tensor out;               // (n_rows, n_out) f32 or compute dtype
};

// The same from weights stored by columns, for one or a few rows that are mostly exact zeros: the
// columns of zeros are not read.
struct LinearColumnsArgs {
  const ColumnWeights* weights;
  ConstTensor x;  // (n_rows, n_in) compute dtype
  Activation activation = Activation::kNone;
  bool accumulate = false;  // with f32 out and no activation
  Tensor out;               // (n_rows, n_out) f32 or compute dtype
};

// What a gate that decides on a device wrote down of a row.
struct RowDecision {
  float residual;  // gsi: the share that the coordinates miss; -1 for a row that passed by
  int32_t kept;    // gsi: 1 by the image, 0 by the whole matrix; graded: how many elements
};

// Rows go by the image of a basis where that misses no more than epsilon of them, and pass by the
// gate for a while after many that did not; or, where columns are given, by those of the elements
// that grade() keeps.
struct GateSpec {
  const LinearWeights* dense = nullptr;
  double epsilon = 0;
  const SubspaceBasis* basis = nullptr;       // gsi
  const LinearWeights* image = nullptr;       // in that basis
  int32_t slow_tokens = 0, retry_tokens = 0;  // of Bypass, src/layer/bypass.h
  int64_t n_sequences = 1;
  const ColumnWeights* columns = nullptr;  // graded
  double most_kept = 1;                    // share from which on a row is multiplied as it is
};

// A gate that decides where its rows are, so that the host need not wait for any decision. It is
// for one or a few rows at a time: each is a product of its own. Decisions are those of project()
// and grade(), give or take 1e-5 of a residual. The residuals of rows that are further from epsilon
// serve statistics: their squares are right to 1e-4 of ||x||^2.
class RowGate {
 public:
  virtual ~RowGate() = default;
  static constexpr int64_t kRoom = 512;  // decisions that are kept until they are taken
  // Where a sequence stands.
  virtual void set(int64_t sequence, int64_t slow_in_a_row, int64_t to_skip) = 0;
  // The next tokens of a sequence; args.weights is not used.
  virtual void run(const LinearArgs& args, int64_t sequence) = 0;
  // Before n rows that a recording of run() goes through.
  virtual void expect(int64_t n_rows) = 0;
  // All since the last call, in the order of run(); waits for them.
  virtual std::vector<RowDecision> take() = 0;
  virtual void forget() = 0;  // the same without a look at them
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

// Keys and values of one layer, of every sequence of the batch.
struct KvView {
  Tensor keys;    // (n_batch, n_kv_heads, capacity, head_dim)
  Tensor values;  // (n_batch, n_kv_heads, capacity, head_dim)
};

struct StoreKvArgs {
  ConstTensor keys;    // (n_rows, n_kv_heads, head_dim)
  ConstTensor values;  // (n_rows, n_kv_heads, head_dim)
  int64_t n_tokens;
  int64_t first_position;
  KvView cache;
};

// Exact attention of n_tokens queries per sequence at positions first_position … over the keys
// before and at them (causal), or over all first_position + n_tokens keys.
struct AttendDenseArgs {
  ConstTensor queries;  // (n_rows, n_heads, head_dim)
  KvView cache;
  int64_t n_tokens;
  int64_t first_position;
  bool causal;
  int64_t window = 0;  // > 0: a query sees the last `window` positions only, its own included
  float scale;
  Tensor out;  // (n_rows, n_heads, head_dim)
};

// out = activation(gate) * up, where gate_up holds both side by side.
struct GateArgs {
  Activation activation;
  ConstTensor gate_up;  // (n_rows, 2 * d_inner)
  Tensor out;           // (n_rows, d_inner)
};

// Operations that were recorded once, to be done again at other positions.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual bool valid() const = 0;  // memory of the backend's own that it works on has not moved
  virtual void replay(int64_t first_position) = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  virtual std::string description() const = 0;  // instruction set or device, for people
  virtual Device device() const = 0;
  virtual DType compute_dtype() const = 0;

  // Throws Error for heads that attention here does not take, for whoever is about to load a model;
  // group: query heads of a key head.
  virtual void check_heads(int64_t /*head_dim*/, int64_t /*group*/) const {}

  virtual Buffer allocate(DType dtype, Shape shape) = 0;       // zeroed
  virtual void upload(ConstTensor host, Tensor device) = 0;    // same dtype and shape
  virtual void download(ConstTensor device, Tensor host) = 0;  // waits until it is there
  // Until all that was asked for is done. A device may still be at work when an operation returns;
  // only whoever reads a clock needs to know.
  virtual void wait() {}
  // Records what `work` asks for, which is not done: operations of one token to a sequence, on
  // tensors that stay where they are, which were done so before; every first_position among them is
  // that of the replay. nullptr where a backend cannot, or has nothing to gain.
  virtual std::unique_ptr<Recording> record(const std::function<void()>&) { return nullptr; }
  virtual bool records() const { return false; }  // whether that is under way
  virtual std::unique_ptr<LinearWeights> pack_linear(MatrixSource source) = 0;
  virtual std::unique_ptr<ColumnWeights> pack_columns(MatrixSource source) = 0;
  virtual std::unique_ptr<Table> make_table(MatrixSource source) = 0;
  // vectors: (rank, n_in), orthonormal rows, host memory.
  virtual std::unique_ptr<SubspaceBasis> make_basis(std::span<const float> vectors, int64_t rank,
                                                    int64_t n_in) = 0;
  // The image W V (n_out, rank) of a matrix (n_out, n_in), with its bias, for linear() on
  // coordinates; V as the basis keeps it.
  virtual std::unique_ptr<LinearWeights> pack_image(const MatrixSource& source,
                                                    const SubspaceBasis& basis) = 0;
  // nullptr where the host decides as fast.
  virtual std::unique_ptr<RowGate> make_gate(const GateSpec&) { return nullptr; }

  virtual void embed(const EmbedArgs& args) = 0;
  virtual void norm(const NormArgs& args) = 0;
  // Whether norm() writes NormArgs::squares, and selection has use for them.
  virtual bool hands_on_squares() const { return false; }
  virtual void linear(const LinearArgs& args) = 0;
  virtual void project(const ProjectArgs& args) = 0;
  virtual void grade(const GradeArgs& args) = 0;
  virtual void linear_columns(const LinearColumnsArgs& args) = 0;
  virtual void rotate(const RotaryArgs& args) = 0;
  virtual void store_kv(const StoreKvArgs& args) = 0;
  virtual void attend_dense(const AttendDenseArgs& args) = 0;
  // The three of them, in that order; turn may be null. Queries and keys may be left unturned where
  // they lie, and a single token's may be stored without: the keys before it are those of earlier
  // passes, which began with embed().
  virtual void store_and_attend(const RotaryArgs* turn, const StoreKvArgs& store,
                                const AttendDenseArgs& attend) {
    if (turn != nullptr) rotate(*turn);
    store_kv(store);
    attend_dense(attend);
  }
  virtual void gate(const GateArgs& args) = 0;
  virtual void convert(ConstTensor from, Tensor to) = 0;  // (n_rows, d), f32 <-> compute dtype
  // to[i] = from[rows[i]]; both (…, d) of one dtype.
  virtual void gather_rows(ConstTensor from, std::span<const int32_t> rows, Tensor to) = 0;
  // to[i] += from[rows[i]]; both (…, d) f32.
  virtual void add_rows(ConstTensor from, std::span<const int32_t> rows, Tensor to) = 0;

  // In float64, and waits; false where scores are compared on the host
  // (eval/compare/base_scores.h).
  virtual bool compare_scores(const CompareScoresArgs&) { return false; }

  virtual std::unique_ptr<Selector> make_selector(const SelectorSpec& spec) = 0;
  virtual std::unique_ptr<KeysAttention> make_keys_attention(const KeysSpec& spec) = 0;
  virtual std::unique_ptr<RepsAttention> make_reps_attention(const RepsSpec& spec) = 0;
  // Throws Error for sizes that this backend does not take.
  virtual std::unique_ptr<RefineAttention> make_refine_attention(const RefineSpec& spec) = 0;
  // Throws Error but on the CPU.
  virtual std::unique_ptr<BaselineAttention> make_baseline_attention(const BaselineSpec&) {
    throw Error(std::string(name()) + " has no baselines", "--device cpu");
  }
};

// dtype: kF32 or kBF16. The plain loops every other backend is compared with.
std::unique_ptr<Backend> make_reference_backend(DType dtype);
// oneDNN or our own packed kernels, and Highway: the fastest this CPU has.
std::unique_ptr<Backend> make_cpu_backend(DType dtype);
// Error in a build without CUDA.
std::unique_ptr<Backend> make_cuda_backend(DType dtype);

}  // namespace sluice::impl
