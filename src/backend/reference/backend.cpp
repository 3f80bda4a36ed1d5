// The reference backend: docs/algorithm.md as plain loops. Sums are float64 in index order, and
// results are rounded once, to the dtype of the output. Never optimised.

#include "backend/reference/attention/attention.h"
#include "backend/reference/attention/refine/refine.h"
#include "backend/reference/elementwise/elementwise.h"
#include "backend/reference/linear/linear.h"
#include "backend/reference/selection/selector.h"
#include "backend/reference/subspace/subspace.h"

namespace sluice::impl {
namespace {

class ReferenceBackend final : public Backend {
 public:
  explicit ReferenceBackend(DType dtype) : dtype_(dtype) {}

  std::string_view name() const override { return "reference"; }
  std::string description() const override { return "plain loops"; }
  Device device() const override { return Device::kCpu; }
  DType compute_dtype() const override { return dtype_; }

  Buffer allocate(DType dtype, Shape shape) override { return host_buffer(dtype, shape); }
  void upload(ConstTensor host, Tensor device) override { copy_rows(host, device); }
  void download(ConstTensor device, Tensor host) override { copy_rows(device, host); }
  std::unique_ptr<LinearWeights> pack_linear(MatrixSource source) override {
    return std::make_unique<reference::linear::Weights>(source, dtype_);
  }
  std::unique_ptr<ColumnWeights> pack_columns(MatrixSource source) override {
    return std::make_unique<reference::subspace::Columns>(std::move(source), dtype_);
  }
  std::unique_ptr<SubspaceBasis> make_basis(std::span<const float> vectors, int64_t rank,
                                            int64_t n_in) override {
    return std::make_unique<reference::subspace::Basis>(vectors, rank, n_in, dtype_);
  }
  std::unique_ptr<LinearWeights> pack_image(const MatrixSource& source,
                                            const SubspaceBasis& basis) override {
    return reference::subspace::pack_image(source, basis, dtype_);
  }
  std::unique_ptr<Table> make_table(MatrixSource source) override {
    return std::make_unique<reference::linear::Rows>(std::move(source));
  }

  void embed(const EmbedArgs& args) override { reference::linear::embed(args); }
  void norm(const NormArgs& args) override { reference::elementwise::norm(args); }
  void norm_heads(const HeadNormArgs& args) override { reference::elementwise::norm_heads(args); }
  void linear(const LinearArgs& args) override { reference::linear::linear(args); }
  void project(const ProjectArgs& args) override { reference::subspace::project(args); }
  void grade(const GradeArgs& args) override { reference::subspace::grade(args); }
  void linear_columns(const LinearColumnsArgs& args) override {
    reference::subspace::linear_columns(args);
  }
  void rotate(const RotaryArgs& args) override { reference::elementwise::rotate(args); }
  void store_kv(const StoreKvArgs& args) override { reference::attention::store_kv(args); }
  void attend_dense(const AttendDenseArgs& args) override {
    reference::attention::attend_dense(args);
  }
  void glu(const GluArgs& args) override { reference::elementwise::glu(args); }
  void convert(ConstTensor from, Tensor to) override { reference::elementwise::convert(from, to); }
  void gather_rows(ConstTensor from, std::span<const int32_t> rows, Tensor to) override {
    reference::elementwise::gather_rows(from, rows, to);
  }
  void add_rows(ConstTensor from, std::span<const int32_t> rows, Tensor to) override {
    reference::elementwise::add_rows(from, rows, to);
  }
  void soft_cap(float cap, Tensor x) override { reference::elementwise::soft_cap(cap, x); }
  std::unique_ptr<Selector> make_selector(const SelectorSpec& spec) override {
    return reference::selection::make_selector(spec);
  }
  std::unique_ptr<KeysAttention> make_keys_attention(const KeysSpec& spec) override {
    return reference::attention::make_keys_attention(spec);
  }
  std::unique_ptr<RepsAttention> make_reps_attention(const RepsSpec& spec) override {
    return reference::attention::make_reps_attention(spec);
  }
  std::unique_ptr<RefineAttention> make_refine_attention(const RefineSpec& spec) override {
    return reference::refine::make_attention(spec);
  }

 private:
  DType dtype_;
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend(DType dtype) {
  return std::make_unique<ReferenceBackend>(dtype);
}

}  // namespace sluice::impl
