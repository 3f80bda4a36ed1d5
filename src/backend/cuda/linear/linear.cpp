// Products through cuBLASLt.

#include "backend/cuda/linear/linear.h"

#include <algorithm>

#include "backend/cuda/elementwise/elements.h"

namespace sluice::impl::cuda::linear {
namespace {

// Sums that wait for their activation stay below this, so that most are still in the second-level
// cache when they are read again, but a product of so many rows still fills the device: in parts of
// 384 rows a product of 4096 x 16384 took 1.4 times as long as whole, for the sake of half a wave.
constexpr int64_t kSumsBytes = int64_t{34} << 20;
constexpr int64_t kRowsUnit = 256;
constexpr size_t kMostPlans = 4096;

bool aligned16(const void* data, int64_t stride, int64_t size) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride * size % 16 == 0;
}

cudaDataType_t type_of(bool bf16) { return bf16 ? CUDA_R_16BF : CUDA_R_32F; }

}  // namespace

DeviceMatrix::DeviceMatrix(const std::shared_ptr<Context>& context, DType dtype, int64_t n_rows,
                           int64_t width) {
  const int64_t stride = round_up(width, kPad);
  memory = DeviceArray<std::byte>(context,
                                  checked_mul(checked_mul(n_rows, stride), element_bytes(dtype)));
  check(cudaMemsetAsync(memory.data(), 0, static_cast<size_t>(memory.size()), context->stream()),
        "clearing memory");
  padded = Tensor(memory.data(), dtype, {n_rows, stride}, Device::kCuda);
  rows = padded.columns_from(0, width);
}

DeviceBias::DeviceBias(const std::shared_ptr<Context>& context, const std::vector<float>& bias) {
  if (bias.empty()) return;
  values = DeviceArray<float>(context, std::span<const float>(bias));
  std::vector<uint16_t> narrow;
  for (const float x : bias) {
    narrow.push_back(to_bfloat16(x).bits);
    if (to_float(to_bfloat16(x)) != x) return;
  }
  exact = DeviceArray<uint16_t>(context, std::span<const uint16_t>(narrow));
}

// What cuBLASLt needs to know of a product, and how it chose to do it.
struct Multiplier::Plan {
  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    for (cublasLtMatrixLayout_t layout : {weights, x, out})
      if (layout != nullptr) cublas_lt().layout_destroy(layout);
    if (product != nullptr) cublas_lt().desc_destroy(product);
  }
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t weights = nullptr, x = nullptr, out = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
};

Multiplier::Multiplier(std::shared_ptr<Context> context, bool own_row)
    : context_(std::move(context)), own_row_(own_row) {}
Multiplier::~Multiplier() = default;

// Columns first, as cuBLAS counts: out (n_out, n_rows) = weights^T (n_in, n_out) x (n_in, n_rows).
const Multiplier::Plan& Multiplier::plan(const Product& p, const void* bias) {
  if (const auto found = plans_.find(p); found != plans_.end()) return *found->second;
  if (plans_.size() >= kMostPlans) plans_.clear();
  const CublasLt& blas = cublas_lt();
  auto made = std::make_unique<Plan>();
  check(blas.desc_create(&made->product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "product");
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    check(blas.desc_set_attribute(made->product, attribute, &value, sizeof value), "product");
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, p.epilogue);
  if (bias != nullptr) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  const auto layout = [&](cublasLtMatrixLayout_t* to, bool bf16, int64_t rows, int64_t columns,
                          int64_t stride) {
    check(blas.layout_create(to, type_of(bf16), static_cast<uint64_t>(rows),
                             static_cast<uint64_t>(columns), stride),
          "layout");
  };
  layout(&made->weights, p.bf16, p.depth, p.n_out, p.weights_stride);
  layout(&made->x, p.bf16, p.depth, p.n_rows, p.x_stride);
  layout(&made->out, p.bf16_out, p.n_out, p.n_rows, p.out_stride);

  Handle<cublasLtMatmulPreference_t, destroy_preference> preference;
  check(blas.preference_create(preference.to_set()), "preference");
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check(blas.preference_set_attribute(preference.get(), attribute, &value, sizeof value),
          "preference");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, Context::kBlasWorkspaceBytes);
  // Parts of a split depth are added in f32, never rounded to the output's dtype before.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    prefer(attribute, uint32_t{16});
  cublasLtMatmulHeuristicResult_t result{};
  int n_found = 0;
  check(blas.algo_get_heuristic(context_->blas(), made->product, made->weights, made->x, made->out,
                                made->out, preference.get(), 1, &result, &n_found),
        "choosing a product");
  if (n_found == 0) check(CUBLAS_STATUS_NOT_SUPPORTED, "choosing a product");
  made->algorithm = result.algo;
  return *plans_.emplace(p, std::move(made)).first->second;
}

void Multiplier::multiply(const Product& product, const Operands& operands) {
  const Plan& chosen = plan(product, operands.bias);
  if (operands.bias != nullptr)
    check(cublas_lt().desc_set_attribute(chosen.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                         &operands.bias, sizeof operands.bias),
          "bias");
  const float one = 1, old = product.accumulate ? 1.0f : 0.0f;
  check(cublas_lt().matmul(context_->blas(), chosen.product, &one, operands.weights, chosen.weights,
                           operands.x, chosen.x, &old, operands.out, chosen.out, operands.out,
                           chosen.out, &chosen.algorithm, context_->blas_workspace(),
                           Context::kBlasWorkspaceBytes, context_->stream()),
        "product");
}

ConstTensor Multiplier::aligned(const ConstTensor& x) {
  const int64_t size = element_bytes(x.dtype()), width = x.row_elements();
  const int64_t stride = x.rows() <= 1 ? round_up(width, kPad) : x.row_stride();
  if (width % kPad == 0 && aligned16(x.bytes(), stride, size)) return x;
  const int64_t padded = round_up(width, kPad);
  const int64_t bytes = checked_mul(checked_mul(x.rows(), padded), size);
  copy_.reserve(context_, bytes);
  check(cudaMemsetAsync(copy_.data(), 0, static_cast<size_t>(bytes), context_->stream()),
        "clearing memory");
  const Tensor copy(copy_.data(), x.dtype(), {x.rows(), padded}, Device::kCuda);
  elementwise::convert(*context_, x, copy.columns_from(0, width));
  return copy;
}

void Multiplier::run(const ConstTensor& weights, const BiasView& bias, const LinearArgs& args) {
  const int64_t n_rows = args.x.rows(), n_out = weights.rows();
  if (n_rows == 0) return;
  const ConstTensor x = aligned(args.x);
  const bool bf16 = x.dtype() == DType::kBF16, bf16_out = args.out.dtype() == DType::kBF16;
  SLUICE_CHECK(x.dtype() == weights.dtype());
  // Measured on an H200: one row of 4096 x 4096 takes our kernel 9.6 us and cuBLASLt 14.4, of
  // 4096 x 16384 31.1 and 34.3. From two rows on cuBLASLt is as fast as a kernel of ours was, or
  // faster, in steps that are recorded.
  if (bf16 && n_rows == 1 && own_row_)
    return multiply_one_row(*context_, {.weights = weights,
                                        .x = x,
                                        .bias = bias.values,
                                        .activation = args.activation,
                                        .accumulate = args.accumulate,
                                        .out = args.out});
  const bool biased = bias.values != nullptr, relu = args.activation == Activation::kRelu;
  Product product{.n_out = n_out,
                  .n_rows = n_rows,
                  .depth = weights.row_elements(),
                  .weights_stride = weights.row_stride(),
                  .x_stride = n_rows <= 1 ? weights.row_elements() : x.row_stride(),
                  .out_stride = n_rows <= 1 ? n_out : args.out.row_stride(),
                  .bf16 = bf16,
                  .bf16_out = bf16_out,
                  .accumulate = args.accumulate,
                  .epilogue = CUBLASLT_EPILOGUE_DEFAULT};
  Operands operands{weights.bytes(), x.bytes(), args.out.bytes(), nullptr};
  // cuBLASLt takes a bias of the output's dtype, and has no other activation that is exact.
  const void* its_bias =
      bf16_out ? static_cast<const void*>(bias.exact) : static_cast<const void*>(bias.values);
  const bool exact_bias = !biased || its_bias != nullptr;
  if (exact_bias && (relu || args.activation == Activation::kNone) &&
      aligned16(args.out.bytes(), product.out_stride, element_bytes(args.out.dtype()))) {
    operands.bias = its_bias;
    if (relu)
      product.epilogue = biased ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    else if (biased)
      product.epilogue = CUBLASLT_EPILOGUE_BIAS;
    return multiply(product, operands);
  }
  // In parts of rows: sums in f32, then the rest.
  product.bf16_out = product.accumulate = false;
  product.out_stride = round_up(n_out, kPad);
  const int64_t part =
      std::max(kRowsUnit, kSumsBytes / (4 * product.out_stride) / kRowsUnit * kRowsUnit);
  for (int64_t first = 0; first < n_rows; first += part) {
    product.n_rows = std::min(part, n_rows - first);
    sums_.reserve(context_, checked_mul(product.n_rows, product.out_stride));
    const Tensor sums =
        Tensor(sums_.data(), DType::kF32, {product.n_rows, product.out_stride}, Device::kCuda)
            .columns_from(0, n_out);
    multiply(product,
             {weights.bytes(), x.rows_from(first, product.n_rows).bytes(), sums_.data(), nullptr});
    finish_rows(*context_, {.sums = sums,
                            .bias = bias.values,
                            .activation = args.activation,
                            .accumulate = args.accumulate,
                            .out = args.out.rows_from(first, product.n_rows)});
  }
}

}  // namespace sluice::impl::cuda::linear
