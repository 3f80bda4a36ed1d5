// The CPU backend: checks arguments, splits rows over threads, and calls the kernels of this
// folder.

#include "backend/backend.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/attention/baseline/baseline.h"
#include "backend/cpu/attention/copy/copy.h"
#include "backend/cpu/attention/dense/dense.h"
#include "backend/cpu/attention/keys/keys.h"
#include "backend/cpu/attention/refine/refine.h"
#include "backend/cpu/gemm/columns.h"
#include "backend/cpu/gemm/linear.h"
#include "backend/cpu/primitives/rows.h"
#include "backend/cpu/selection/selector.h"
#include "backend/cpu/subspace/grade.h"
#include "backend/cpu/subspace/subspace.h"
#include "core/threads.h"

namespace sluice::impl {
namespace {

// Rows worth a thread: below this a parallel region costs more than it saves.
constexpr int64_t kGrainElements = 16384;

int64_t grain_rows(int64_t row_elements) {
  return std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, row_elements));
}

// A row as f32: in place when it is f32 already, else through a scratch row.
class FloatRow {
 public:
  explicit FloatRow(int64_t n) : scratch_(static_cast<size_t>(n)) {}
  const float* read(const ConstTensor& x, int64_t row) {
    if (x.dtype() == DType::kF32) return x.row<float>(row);
    cpu::primitives::widen(x.row<BFloat16>(row), x.row_elements(), scratch_.data());
    return scratch_.data();
  }
  // Where to compute a row of `out`; write() then stores it.
  float* target(const Tensor& out, int64_t row) {
    return out.dtype() == DType::kF32 ? out.row<float>(row) : scratch_.data();
  }
  void write(const Tensor& out, int64_t row) {
    if (out.dtype() == DType::kBF16)
      cpu::primitives::narrow(scratch_.data(), out.row_elements(), out.row<BFloat16>(row));
  }

 private:
  std::vector<float> scratch_;
};

class TableSource final : public Table {
 public:
  explicit TableSource(MatrixSource source) : rows(std::move(source)) {}
  MatrixSource rows;
};

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(DType dtype) : dtype_(dtype) {}

  std::string_view name() const override { return "cpu"; }
  std::string description() const override {
    return std::string(cpu::primitives::simd_name()) +
           (provider_.empty() ? "" : ", products: " + provider_);
  }
  Device device() const override { return Device::kCpu; }
  DType compute_dtype() const override { return dtype_; }

  Buffer allocate(DType dtype, Shape shape) override { return host_buffer(dtype, shape); }
  void upload(ConstTensor host, Tensor device) override { copy_rows(host, device); }
  void download(ConstTensor device, Tensor host) override { copy_rows(device, host); }

  std::unique_ptr<LinearWeights> pack_linear(MatrixSource source) override {
    auto weights = cpu::gemm::make_linear(std::move(source), dtype_);
    provider_ = weights->provider();
    return weights;
  }
  std::unique_ptr<ColumnWeights> pack_columns(MatrixSource source) override {
    return cpu::gemm::pack_columns(std::move(source), dtype_);
  }
  std::unique_ptr<SubspaceBasis> make_basis(std::span<const float> vectors, int64_t rank,
                                            int64_t n_in) override {
    return cpu::subspace::make_basis(vectors, rank, n_in, dtype_);
  }
  std::unique_ptr<LinearWeights> pack_image(const MatrixSource& source,
                                            const SubspaceBasis& basis) override {
    return pack_linear(cpu::subspace::image_source(source, basis));
  }
  // The rows stay in the file's map: a sequence touches few of them.
  std::unique_ptr<Table> make_table(MatrixSource source) override {
    return std::make_unique<TableSource>(std::move(source));
  }

  void embed(const EmbedArgs& args) override {
    const auto& table = dynamic_cast<const TableSource&>(*args.table).rows;
    SLUICE_CHECK(static_cast<int64_t>(args.ids.size()) == args.out.rows());
    SLUICE_CHECK(args.out.row_elements() == table.n_in);
    for_rows(args.out, [&](int64_t begin, int64_t end) {
      std::vector<float> row(static_cast<size_t>(table.n_in));
      for (int64_t r = begin; r < end; ++r) {
        const int32_t id = args.ids[static_cast<size_t>(r)];
        SLUICE_CHECK(id >= 0 && id < table.n_out);
        table.read_rows(id, id + 1, row.data());
        if (args.zero_id == id) std::fill(row.begin(), row.end(), 0.0f);
        if (args.scale != 1.0f) cpu::primitives::scale(args.scale, table.n_in, row.data());
        float* out = args.out.row<float>(r);
        if (args.accumulate)
          cpu::primitives::add(row.data(), table.n_in, out);
        else
          std::copy(row.begin(), row.end(), out);
      }
    });
  }

  void norm(const NormArgs& args) override {
    SLUICE_CHECK(args.x.shape() == args.out.shape());
    for_rows(args.out, [&](int64_t begin, int64_t end) {
      FloatRow in(args.x.row_elements()), out(args.x.row_elements());
      for (int64_t r = begin; r < end; ++r) {
        cpu::primitives::norm_row(
            {.kind = args.kind,
             .epsilon = args.epsilon,
             .x = in.read(args.x, r),
             .weight = args.weight.defined() ? args.weight.data<float>() : nullptr,
             .bias = args.bias.defined() ? args.bias.data<float>() : nullptr,
             .n = args.x.row_elements(),
             .out = out.target(args.out, r)});
        out.write(args.out, r);
      }
    });
  }

  void norm_heads(const HeadNormArgs& args) override {
    const int64_t n_heads = args.x.shape()[1], head_dim = args.x.shape()[2];
    SLUICE_CHECK(args.query_weight.shape() == Shape{head_dim} &&
                 args.key_weight.shape() == Shape{head_dim});
    for_rows(args.x, [&](int64_t begin, int64_t end) {
      FloatRow row(args.x.row_elements());
      for (int64_t r = begin; r < end; ++r) {
        row.read(args.x, r);
        float* x = row.target(args.x, r);
        for (int64_t head = 0; head < n_heads; ++head) {
          const ConstTensor& weight = head < args.n_queries ? args.query_weight : args.key_weight;
          cpu::primitives::norm_row({.kind = NormKind::kRms,
                                     .epsilon = args.epsilon,
                                     .x = x + head * head_dim,
                                     .weight = weight.data<float>(),
                                     .bias = nullptr,
                                     .n = head_dim,
                                     .out = x + head * head_dim});
        }
        row.write(args.x, r);
      }
    });
  }

  void linear(const LinearArgs& args) override {
    SLUICE_CHECK(args.x.row_elements() == args.weights->n_in());
    SLUICE_CHECK(args.out.row_elements() == args.weights->n_out());
    SLUICE_CHECK(args.x.rows() == args.out.rows());
    SLUICE_CHECK(!args.accumulate ||
                 (args.activation == Activation::kNone && args.out.dtype() == DType::kF32));
    dynamic_cast<const cpu::gemm::Linear&>(*args.weights).run(args);
  }

  void project(const ProjectArgs& args) override { cpu::subspace::project(args); }
  void linear_columns(const LinearColumnsArgs& args) override { cpu::gemm::linear_columns(args); }
  void grade(const GradeArgs& args) override {
    SLUICE_CHECK(args.x.shape() == args.graded.shape() && args.x.dtype() == args.graded.dtype());
    SLUICE_CHECK(static_cast<int64_t>(args.kept.size()) == args.x.rows() && args.epsilon >= 0);
    for_rows(args.graded,
             [&](int64_t begin, int64_t end) { cpu::subspace::grade_rows(args, begin, end); });
  }

  void rotate(const RotaryArgs& args) override {
    const int64_t n_heads = args.x.shape()[1], head_dim = args.x.shape()[2];
    const int64_t half = args.cosine.shape()[1];
    SLUICE_CHECK(2 * half <= head_dim);
    const auto position_of = [&](int64_t r) {
      return args.positions.empty() ? args.first_position + r % args.n_tokens
                                    : int64_t{args.positions[static_cast<size_t>(r)]};
    };
    SLUICE_CHECK(args.positions.empty()
                     ? args.first_position + args.n_tokens <= args.cosine.rows()
                     : static_cast<int64_t>(args.positions.size()) == args.x.rows());
    for_rows(args.x, [&](int64_t begin, int64_t end) {
      FloatRow row(args.x.row_elements());
      for (int64_t r = begin; r < end; ++r) {
        const int64_t position = position_of(r);
        row.read(args.x, r);
        float* x = row.target(args.x, r);
        for (int64_t head = 0; head < n_heads; ++head)
          cpu::primitives::rotate_head(args.style, args.cosine.row<float>(position),
                                       args.sine.row<float>(position), half, x + head * head_dim);
        row.write(args.x, r);
      }
    });
  }

  void store_kv(const StoreKvArgs& args) override { cpu::dense::store(args); }
  void attend_dense(const AttendDenseArgs& args) override { cpu::dense::attend(args); }
  void attend_ragged(const AttendRaggedArgs& args) override { cpu::dense::attend_ragged(args); }

  void glu(const GluArgs& args) override {
    const int64_t d_inner = args.out.row_elements();
    SLUICE_CHECK(args.gate_up.row_elements() == 2 * d_inner);
    for_rows(args.out, [&](int64_t begin, int64_t end) {
      FloatRow in(2 * d_inner), out(d_inner);
      for (int64_t r = begin; r < end; ++r) {
        const float* gate = in.read(args.gate_up, r);
        cpu::primitives::gate_row(args.activation, gate, gate + d_inner, d_inner,
                                  out.target(args.out, r));
        out.write(args.out, r);
      }
    });
  }

  void convert(ConstTensor from, Tensor to) override {
    SLUICE_CHECK(from.shape() == to.shape());
    if (from.dtype() == to.dtype()) return copy_rows(from, to);
    for_rows(to, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        if (to.dtype() == DType::kBF16)
          cpu::primitives::narrow(from.row<float>(r), from.row_elements(), to.row<BFloat16>(r));
        else
          cpu::primitives::widen(from.row<BFloat16>(r), from.row_elements(), to.row<float>(r));
      }
    });
  }

  void gather_rows(ConstTensor from, std::span<const int32_t> rows, Tensor to) override {
    SLUICE_CHECK(static_cast<int64_t>(rows.size()) == to.rows());
    SLUICE_CHECK(from.dtype() == to.dtype() && from.row_elements() == to.row_elements());
    const int64_t size = element_bytes(from.dtype());
    for_rows(to, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        std::memcpy(to.bytes() + r * to.row_stride() * size,
                    from.bytes() + rows[static_cast<size_t>(r)] * from.row_stride() * size,
                    static_cast<size_t>(to.row_elements() * size));
    });
  }

  void soft_cap(float cap, Tensor x) override {
    SLUICE_CHECK(cap > 0 && x.dtype() == DType::kF32);
    for_rows(x, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        cpu::primitives::soft_cap(cap, x.row_elements(), x.row<float>(r));
    });
  }

  void add_rows(ConstTensor from, std::span<const int32_t> rows, Tensor to) override {
    SLUICE_CHECK(static_cast<int64_t>(rows.size()) == to.rows() ||
                 (rows.empty() && from.rows() == to.rows()));
    SLUICE_CHECK(from.row_elements() == to.row_elements());
    for_rows(to, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        cpu::primitives::add(from.row<float>(rows.empty() ? r : rows[static_cast<size_t>(r)]),
                             to.row_elements(), to.row<float>(r));
    });
  }

  std::unique_ptr<Selector> make_selector(const SelectorSpec& spec) override {
    return cpu::selection::make_selector(spec);
  }
  std::unique_ptr<KeysAttention> make_keys_attention(const KeysSpec& spec) override {
    return cpu::keys::make_attention(spec);
  }
  std::unique_ptr<RepsAttention> make_reps_attention(const RepsSpec& spec) override {
    return cpu::copy::make_attention(spec);
  }
  std::unique_ptr<RefineAttention> make_refine_attention(const RefineSpec& spec) override {
    return cpu::refine::make_attention(spec);
  }
  std::unique_ptr<BaselineAttention> make_baseline_attention(const BaselineSpec& spec) override {
    return cpu::baseline::make_attention(spec);
  }

 private:
  static void for_rows(const Tensor& out, const std::function<void(int64_t, int64_t)>& body) {
    parallel_for(out.rows(), grain_rows(out.row_elements()), body);
  }

  DType dtype_;
  std::string provider_;  // of the matrix products, once there are some
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(DType dtype) {
  SLUICE_CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  return std::make_unique<CpuBackend>(dtype);
}

}  // namespace sluice::impl
