// The CUDA backend: checks arguments and calls the kernels of this folder, all on one stream.

#include "backend/backend.h"

#include "backend/cuda/attention/baseline/baseline.h"
#include "backend/cuda/attention/copy/copy.h"
#include "backend/cuda/attention/dense/dense.h"
#include "backend/cuda/attention/keys/keys.h"
#include "backend/cuda/attention/refine/cache.h"
#include "backend/cuda/elementwise/elements.h"
#include "backend/cuda/linear/blocks/weights.h"
#include "backend/cuda/linear/linear.h"
#include "backend/cuda/linear/pack.h"
#include "backend/cuda/runtime/nccl.h"
#include "backend/cuda/selection/selection.h"
#include "backend/cuda/subspace/subspace.h"

namespace sluice::impl {
namespace {

using cuda::Context;
using cuda::DeviceArray;

class CudaRecording final : public Recording {
 public:
  // Null where the work cannot be recorded.
  static std::unique_ptr<CudaRecording> make(std::shared_ptr<Context> context, int64_t n_positions,
                                             const std::function<void()>& work) {
    std::unique_ptr<CudaRecording> made(new CudaRecording(std::move(context), n_positions));
    return made->take(work) ? std::move(made) : nullptr;
  }
  bool valid() const override { return context_->moves() == moves_; }
  void replay(std::span<const int32_t> positions) override {
    SLUICE_CHECK(valid() && std::ssize(positions) == positions_.size());
    context_->send(positions.data(), positions_.data(),
                   static_cast<int64_t>(positions.size_bytes()));
    cuda::check(cudaGraphLaunch(ready_.get(), context_->stream()), "recorded work");
  }

 private:
  CudaRecording(std::shared_ptr<Context> context, int64_t n_positions)
      : context_(std::move(context)),
        positions_(context_, n_positions),
        moves_(context_->moves()) {}

  bool take(const std::function<void()>& work) {
    cuda::check(cudaStreamBeginCapture(context_->stream(), cudaStreamCaptureModeThreadLocal),
                "recording");
    context_->record_at(positions_.data(), positions_.size());
    bool taken = true;
    try {
      work();
    } catch (const cuda::CannotRecord&) {
      taken = false;
    } catch (const Error&) {
      taken = false;  // done without, it goes on or says the same
    } catch (...) {
      end();
      cudaGetLastError();
      throw;
    }
    taken = end() && taken && valid() &&
            cudaGraphInstantiate(ready_.to_set(), graph_.get(), 0) == cudaSuccess;
    cudaGetLastError();  // of what could not be recorded nothing is left
    return taken;
  }
  bool end() {
    context_->record_at(nullptr, 0);
    return cudaStreamEndCapture(context_->stream(), graph_.to_set()) == cudaSuccess;
  }

  std::shared_ptr<Context> context_;
  DeviceArray<int32_t> positions_;
  int64_t moves_;
  cuda::Handle<cudaGraph_t, cudaGraphDestroy> graph_;
  cuda::Handle<cudaGraphExec_t, cudaGraphExecDestroy> ready_;
};

class CudaBackend final : public Backend,
                          private StepRecorder,
                          private DeviceGates,
                          private ScoreComparer,
                          private SharedDevice,
                          private DeviceRanks {
 public:
  CudaBackend(DType dtype, std::shared_ptr<Context> context)
      : dtype_(dtype),
        context_(std::move(context)),
        multiplier_(context_),
        blocks_(context_, multiplier_) {}

  std::string_view name() const override { return "cuda"; }
  void check_heads(int64_t head_dim, int64_t group) const override {
    cuda::dense::check_heads(head_dim, group);
  }
  void check_cache(CacheKind kind) const override {
    if (kind != CacheKind::kExact)
      throw Error("dense attention on this device keeps keys and values in the compute dtype",
                  "leave --cache out, or use --device cpu");
  }
  std::string description() const override { return context_->description(); }
  Device device() const override { return Device::kCuda; }
  DType compute_dtype() const override { return dtype_; }

  Buffer allocate(DType dtype, Shape shape) override {
    const int64_t bytes = checked_mul(shape.numel(), element_bytes(dtype));
    void* data = context_->allocate(bytes);
    Buffer buffer(data, dtype, shape, Device::kCuda,
                  [context = context_](void* p) { context->free(p); });
    cuda::check(cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), context_->stream()),
                "clearing memory");
    return buffer;
  }

  void upload(ConstTensor host, Tensor device) override {
    SLUICE_CHECK(host.shape() == device.shape() && host.dtype() == device.dtype());
    const int64_t size = element_bytes(host.dtype()), n = host.row_elements() * size;
    if (host.contiguous() && device.contiguous())
      return context_->send(host.bytes(), device.bytes(), host.rows() * n);
    for (int64_t row = 0; row < host.rows(); ++row)
      context_->send(host.bytes() + row * host.row_stride() * size,
                     device.bytes() + row * device.row_stride() * size, n);
  }

  void download(ConstTensor device, Tensor host) override {
    SLUICE_CHECK(host.shape() == device.shape() && host.dtype() == device.dtype());
    const int64_t size = element_bytes(host.dtype()), n = host.row_elements() * size;
    if (n == 0 || host.rows() == 0) return;
    if (host.contiguous() && device.contiguous())
      return context_->fetch(device.bytes(), host.bytes(), host.rows() * n);
    const auto pitch = [&](int64_t stride) { return static_cast<size_t>(stride * size); };
    cuda::check(cudaMemcpy2DAsync(host.bytes(), pitch(host.row_stride()), device.bytes(),
                                  pitch(device.row_stride()), static_cast<size_t>(n),
                                  static_cast<size_t>(host.rows()), cudaMemcpyDeviceToHost,
                                  context_->stream()),
                "copy from the device");
    context_->synchronize();
  }

  void wait() override { context_->synchronize(); }
  StepRecorder* recorder() override { return this; }
  DeviceGates* device_gates() override { return this; }
  ScoreComparer* score_comparer() override { return this; }
  SharedDevice* shared_device() override { return this; }
  DeviceRanks* device_ranks() override { return cuda::nccl() != nullptr ? this : nullptr; }

  std::unique_ptr<LinearWeights> pack_linear(MatrixSource source) override {
    if (auto blocks = cuda::linear::pack_blocks(context_, source, dtype_)) return blocks;
    return std::make_unique<cuda::linear::DeviceWeights>(
        cuda::linear::pack_matrix(context_, source, dtype_),
        cuda::linear::DeviceBias(context_, source.bias));
  }
  std::unique_ptr<ColumnWeights> pack_columns(MatrixSource source) override {
    return cuda::subspace::pack_columns(context_, source, dtype_);
  }
  std::unique_ptr<Table> make_table(MatrixSource source) override {
    return cuda::linear::pack_table(context_, source);
  }
  std::unique_ptr<SubspaceBasis> make_basis(std::span<const float> vectors, int64_t rank,
                                            int64_t n_in) override {
    return cuda::subspace::make_basis(context_, vectors, rank, n_in, dtype_);
  }
  std::unique_ptr<LinearWeights> pack_image(const MatrixSource& source,
                                            const SubspaceBasis& basis) override {
    return cuda::subspace::pack_image(context_, multiplier_, source,
                                      dynamic_cast<const cuda::subspace::DeviceBasis&>(basis),
                                      dtype_);
  }

  void embed(const EmbedArgs& args) override {
    const auto& table = dynamic_cast<const cuda::elementwise::DeviceTable&>(*args.table);
    SLUICE_CHECK(static_cast<int64_t>(args.ids.size()) == args.out.rows());
    SLUICE_CHECK(args.out.row_elements() == table.rows.row_elements() &&
                 args.out.dtype() == DType::kF32);
    for (const int32_t id : args.ids) SLUICE_CHECK(id >= 0 && id < table.rows.rows());
    const DeviceArray<int32_t> ids(context_, args.ids);
    cuda::elementwise::embed(*context_, {.table = table.rows,
                                         .ids = ids.data(),
                                         .scale = args.scale,
                                         .zero_id = args.zero_id.value_or(-1),
                                         .accumulate = args.accumulate,
                                         .out = args.out});
  }

  void norm(const NormArgs& args) override {
    SLUICE_CHECK(args.x.shape() == args.out.shape());
    SLUICE_CHECK(!args.squares.defined() ||
                 (args.squares.shape() == Shape({args.x.rows(), 4}) && args.squares.contiguous() &&
                  args.squares.dtype() == DType::kF32));
    cuda::elementwise::norm(*context_, args);
  }
  bool writes_squares() const override { return true; }
  void norm_heads(const HeadNormArgs& args) override {
    const Shape weight{args.x.shape()[2]};
    SLUICE_CHECK(args.query_weight.shape() == weight && args.key_weight.shape() == weight);
    cuda::elementwise::norm_heads(*context_, args);
  }

  void linear(const LinearArgs& args) override {
    SLUICE_CHECK(args.x.row_elements() == args.weights->n_in());
    SLUICE_CHECK(args.out.row_elements() == args.weights->n_out());
    SLUICE_CHECK(args.x.rows() == args.out.rows());
    SLUICE_CHECK(!args.accumulate ||
                 (args.activation == Activation::kNone && args.out.dtype() == DType::kF32));
    if (const auto* blocks = dynamic_cast<const cuda::linear::BlockWeights*>(args.weights))
      return blocks_.run(*blocks, args);
    const auto& weights = dynamic_cast<const cuda::linear::DeviceWeights&>(*args.weights);
    multiplier_.run(weights.matrix, weights.bias, args);
  }

  void project(const ProjectArgs& args) override {
    cuda::subspace::project(context_, multiplier_, args);
  }
  void grade(const GradeArgs& args) override { cuda::subspace::grade(context_, args); }
  void linear_columns(const LinearColumnsArgs& args) override {
    cuda::subspace::linear_columns(context_, args);
  }

  void rotate(const RotaryArgs& args) override {
    check_rotary(args);
    if (args.positions.empty()) return cuda::elementwise::rotate(*context_, args, nullptr);
    if (const int32_t* recorded = context_->recorded_positions(std::ssize(args.positions)))
      return cuda::elementwise::rotate(*context_, args, recorded);
    const DeviceArray<int32_t> positions(context_, args.positions);
    cuda::elementwise::rotate(*context_, args, positions.data());
  }

  void store_kv(const StoreKvArgs& args) override {
    check_store(args);
    cuda::elementwise::store_kv(*context_, args);
  }

  void attend_dense(const AttendDenseArgs& args) override {
    cuda::dense::attend_dense(*context_, args);
  }
  void store_and_attend(const RotaryArgs* rotary, const StoreKvArgs& store,
                        const AttendDenseArgs& attend) override {
    if (rotary != nullptr) check_rotary(*rotary);
    check_store(store);
    if (!cuda::dense::store_and_attend(*context_, rotary, store, attend))
      Backend::store_and_attend(rotary, store, attend);
  }

  void attend_ragged(const AttendRaggedArgs& args) override {
    std::vector<RaggedSequence> single, others;
    for (const RaggedSequence& sequence : args.sequences)
      (sequence.n_tokens == 1 ? single : others).push_back(sequence);
    if (!cuda::dense::attend_ragged(*context_, args, single))
      others.insert(others.end(), single.begin(), single.end());
    AttendRaggedArgs rest = args;
    rest.sequences = others;
    Backend::attend_ragged(rest);
  }

  void glu(const GluArgs& args) override {
    SLUICE_CHECK(args.gate_up.row_elements() == 2 * args.out.row_elements());
    cuda::elementwise::glu(*context_, args);
  }

  void convert(ConstTensor from, Tensor to) override {
    SLUICE_CHECK(from.shape() == to.shape());
    cuda::elementwise::convert(*context_, from, to);
  }

  void gather_rows(ConstTensor from, std::span<const int32_t> rows, Tensor to) override {
    check_rows(from, rows, to);
    SLUICE_CHECK(from.dtype() == to.dtype());
    const DeviceArray<int32_t> at(context_, rows);
    cuda::elementwise::gather_rows(*context_, from, at.data(), to);
  }

  void soft_cap(float cap, Tensor x) override {
    SLUICE_CHECK(cap > 0 && x.dtype() == DType::kF32);
    cuda::elementwise::soft_cap(*context_, cap, x);
  }

  void add_rows(ConstTensor from, std::span<const int32_t> rows, Tensor to) override {
    if (rows.empty()) {
      SLUICE_CHECK(from.shape() == to.shape());
      return cuda::elementwise::add_rows(*context_, from, nullptr, to);
    }
    check_rows(from, rows, to);
    const DeviceArray<int32_t> at(context_, rows);
    cuda::elementwise::add_rows(*context_, from, at.data(), to);
  }

  std::unique_ptr<Selector> make_selector(const SelectorSpec& spec) override {
    return cuda::selection::make_selector(context_, spec);
  }
  std::unique_ptr<KeysAttention> make_keys_attention(const KeysSpec& spec) override {
    return cuda::keys::make_keys_attention(context_, spec);
  }
  std::unique_ptr<RepsAttention> make_reps_attention(const RepsSpec& spec) override {
    return cuda::copy::make_reps_attention(context_, spec);
  }
  std::unique_ptr<RefineAttention> make_refine_attention(const RefineSpec& spec) override {
    return cuda::refine::make_refine_attention(context_, spec);
  }
  std::unique_ptr<BaselineAttention> make_baseline_attention(const BaselineSpec& spec) override {
    return cuda::baseline::make_baseline_attention(context_, spec);
  }

 private:
  std::unique_ptr<Recording> record(const std::function<void()>& work,
                                    int64_t n_positions) override {
    return CudaRecording::make(context_, n_positions, work);
  }
  bool active() const override { return context_->recording(); }
  std::shared_ptr<void> enter() override {
    return std::make_shared<cuda::CurrentDevice>(context_->device());
  }
  void use_stream(void* stream) override {
    context_->use_stream(static_cast<cudaStream_t>(stream));
  }
  std::string device_id() const override { return cuda::device_id(*context_); }
  std::vector<std::byte> make_group() override { return cuda::make_nccl_group(); }
  std::unique_ptr<RankSums> join(std::span<const std::byte> group, int rank, int size) override {
    return cuda::join_nccl(context_, group, rank, size);
  }
  std::unique_ptr<RowGate> make_gate(const GateSpec& spec) override {
    return cuda::subspace::make_gate(context_, multiplier_, spec);
  }
  void compare_scores(const CompareScoresArgs& args) override {
    const int64_t n = args.base.rows(), vocab = args.base.row_elements();
    SLUICE_CHECK(args.base.shape() == args.scores.shape() && args.base.dtype() == DType::kF32 &&
                 args.scores.dtype() == DType::kF32);
    SLUICE_CHECK(std::ssize(args.next) == n && std::ssize(args.out) == n && vocab <= INT32_MAX);
    for (const int32_t id : args.next) SLUICE_CHECK(id >= 0 && id < vocab);
    if (n == 0) return;
    const DeviceArray<int32_t> next(context_, args.next);
    const DeviceArray<TokenComparison> out(context_, n);
    cuda::elementwise::compare_scores(*context_, args.base, args.scores, next.data(), out.data());
    context_->fetch(out.data(), args.out.data(), static_cast<int64_t>(args.out.size_bytes()));
  }

  static void check_rotary(const RotaryArgs& args) {
    SLUICE_CHECK(2 * args.cosine.shape()[1] <= args.x.shape()[2]);
    if (args.positions.empty()) {
      SLUICE_CHECK(args.first_position + args.n_tokens <= args.cosine.rows());
      return;
    }
    SLUICE_CHECK(static_cast<int64_t>(args.positions.size()) == args.x.rows());
    for (const int32_t position : args.positions)
      SLUICE_CHECK(position >= 0 && position < args.cosine.rows());
  }
  static void check_store(const StoreKvArgs& args) {
    const Shape& cache = args.cache.keys.shape();
    SLUICE_CHECK(args.keys.dtype() == args.cache.keys.dtype());
    SLUICE_CHECK(args.first_position + args.n_tokens <= cache[2]);
    SLUICE_CHECK(args.keys.rows() <= cache[0] * args.n_tokens);
  }
  static void check_rows(const ConstTensor& from, std::span<const int32_t> rows, const Tensor& to) {
    SLUICE_CHECK(static_cast<int64_t>(rows.size()) == to.rows());
    SLUICE_CHECK(from.row_elements() == to.row_elements());
    for (const int32_t row : rows) SLUICE_CHECK(row >= 0 && row < from.rows());
  }

  DType dtype_;
  std::shared_ptr<Context> context_;
  cuda::linear::Multiplier multiplier_;
  cuda::linear::BlockMultiplier blocks_;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(DType dtype) { return make_cuda_backend_for(dtype, 0); }

std::unique_ptr<Backend> make_cuda_backend_for(DType dtype, int process) {
  SLUICE_CHECK((dtype == DType::kF32 || dtype == DType::kBF16) && process >= 0);
  auto context = std::make_shared<Context>(process % std::max(cuda::device_count(), 1));
  // A library that is missing is known before weights are loaded.
  context->blas();
  context->blas_workspace();
  return std::make_unique<CudaBackend>(dtype, std::move(context));
}

std::unique_ptr<Backend> make_cuda_backend_at(DType dtype, const CudaPlace& place) {
  SLUICE_CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  const cuda::CurrentDevice before;
  return std::make_unique<CudaBackend>(
      dtype, std::make_shared<Context>(place.device, static_cast<cudaStream_t>(place.stream)));
}

}  // namespace sluice::impl
