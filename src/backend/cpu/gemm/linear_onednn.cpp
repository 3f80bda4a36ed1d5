// x W^T through oneDNN's matmul, weights reordered once to the layout it asks for. Works with
// oneDNN 2.6 (Debian 12) and 3.x, whose interfaces differ in how a descriptor is made.

#include <dnnl.hpp>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "backend/cpu/gemm/linear.h"
#include "backend/cpu/primitives/rows.h"

namespace sluice::impl::cpu::gemm {
namespace {

using Memory = dnnl::memory;

// The height the weights' layout is chosen for; other heights take the layout as it is.
constexpr int64_t kLayoutRows = 256;
// Heights are many while a conversation grows; decoding needs one, prefill a few.
constexpr size_t kMaxPrimitives = 16;

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

Memory::data_type dnnl_type(DType dtype) {
  return dtype == DType::kBF16 ? Memory::data_type::bf16 : Memory::data_type::f32;
}

// Without such instructions oneDNN 2.6 has other ways on AVX-512, slower than our own kernels, and
// sums in an order that depends on the number of threads.
bool has_bf16_products() {
#ifdef __x86_64__
  return __builtin_cpu_supports("avx512bf16");
#else
  return true;
#endif
}

// What distinguishes one compiled product from another of the same weights.
struct Call {
  int64_t n_rows, x_stride, out_stride;
  DType out;
  Activation activation;
  bool accumulate;
  auto operator<=>(const Call&) const = default;
};

dnnl::primitive_attr attributes(const Call& call) {
  dnnl::post_ops post;
  const auto eltwise = [&](dnnl::algorithm algorithm, float alpha) {
#if DNNL_VERSION_MAJOR >= 3
    post.append_eltwise(algorithm, alpha, 0.0f);
#else
    post.append_eltwise(1.0f, algorithm, alpha, 0.0f);
#endif
  };
  if (call.accumulate) post.append_sum(1.0f);
  switch (call.activation) {
    case Activation::kNone:
      break;
    case Activation::kRelu:
      eltwise(dnnl::algorithm::eltwise_relu, 0.0f);
      break;
    case Activation::kGeluErf:
      eltwise(dnnl::algorithm::eltwise_gelu_erf, 0.0f);
      break;
    case Activation::kGeluTanh:
      eltwise(dnnl::algorithm::eltwise_gelu_tanh, 0.0f);
      break;
    case Activation::kSilu:
      eltwise(dnnl::algorithm::eltwise_swish, 1.0f);
      break;
  }
  dnnl::primitive_attr attr;
  attr.set_post_ops(post);
  return attr;
}

class OnednnLinear final : public Linear {
 public:
  OnednnLinear(const MatrixSource& source, DType dtype)
      : Linear(source.n_out, source.n_in, source.n_out * source.n_in * element_bytes(dtype)),
        dtype_(dtype),
        stream_(cpu_engine()) {
    const Memory::desc any({source.n_in, source.n_out}, dnnl_type(dtype), Memory::format_tag::any);
    const auto layout = describe({kLayoutRows, n_in(), n_out(), dtype, Activation::kNone, false},
                                 any, !source.bias.empty());
    weights_ = Memory(layout.weights_desc(), cpu_engine());
    reorder_weights(source);
    if (!source.bias.empty()) {
      bias_ = Memory({{1, n_out()}, Memory::data_type::f32, Memory::format_tag::ab}, cpu_engine());
      std::copy(source.bias.begin(), source.bias.end(),
                static_cast<float*>(bias_.get_data_handle()));
    }
    implementation_ = std::string("oneDNN ") + layout.impl_info_str();
    // Decoding must work in the layout chosen for prefill; if not, our own kernels take over.
    compiled({1, n_in(), n_out(), dtype, Activation::kNone, false});
  }

  const char* provider() const override { return implementation_.c_str(); }

  void run(const LinearArgs& args) const override {
    const Call call{args.x.rows(),    args.x.row_stride(), args.out.row_stride(),
                    args.out.dtype(), args.activation,     args.accumulate};
    SLUICE_CHECK(args.x.dtype() == dtype_);
    try {
      execute(call, args);
    } catch (const dnnl::error& e) {
      throw Error(std::string("oneDNN: ") + e.what());
    }
  }

 private:
  void execute(const Call& call, const LinearArgs& args) const {
    const std::lock_guard lock(mutex_);
    const dnnl::matmul& matmul = compiled(call);
    Memory x(x_desc(call), cpu_engine(), const_cast<std::byte*>(args.x.bytes()));
    Memory out(out_desc(call), cpu_engine(), args.out.bytes());
    std::unordered_map<int, Memory> arguments = {
        {DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, weights_}, {DNNL_ARG_DST, out}};
    if (bias_) arguments.emplace(DNNL_ARG_BIAS, bias_);
    matmul.execute(stream_, arguments);
    stream_.wait();
  }

  Memory::desc x_desc(const Call& call) const {
    return {{call.n_rows, n_in()}, dnnl_type(dtype_), Memory::dims{call.x_stride, 1}};
  }
  Memory::desc out_desc(const Call& call) const {
    return {{call.n_rows, n_out()}, dnnl_type(call.out), Memory::dims{call.out_stride, 1}};
  }

  dnnl::matmul::primitive_desc describe(const Call& call, const Memory::desc& weights,
                                        bool has_bias) const {
    const Memory::desc bias({1, n_out()}, Memory::data_type::f32, Memory::format_tag::ab);
    const auto attr = attributes(call);
#if DNNL_VERSION_MAJOR >= 3
    return has_bias ? dnnl::matmul::primitive_desc(cpu_engine(), x_desc(call), weights, bias,
                                                   out_desc(call), attr)
                    : dnnl::matmul::primitive_desc(cpu_engine(), x_desc(call), weights,
                                                   out_desc(call), attr);
#else
    const auto desc = has_bias ? dnnl::matmul::desc(x_desc(call), weights, bias, out_desc(call))
                               : dnnl::matmul::desc(x_desc(call), weights, out_desc(call));
    return {desc, attr, cpu_engine()};
#endif
  }

  const dnnl::matmul& compiled(const Call& call) const {
    const auto found = primitives_.find(call);
    if (found != primitives_.end()) return found->second;
    if (primitives_.size() >= kMaxPrimitives) primitives_.clear();
    const dnnl::matmul matmul(describe(call, weights_.get_desc(), static_cast<bool>(bias_)));
    return primitives_.emplace(call, matmul).first->second;
  }

  // Source rows are columns of the (n_in, n_out) matrix that matmul takes. Slices of rows are
  // read to keep the f32 copy small; a blocked layout has no partial view, so they are gathered
  // in the compute dtype first.
  void reorder_weights(const MatrixSource& source) {
    const Buffer plain = host_buffer(dtype_, {source.n_out, source.n_in});
    constexpr int64_t kSlice = 64;
    std::vector<float> rows(static_cast<size_t>(kSlice * source.n_in));
    for (int64_t begin = 0; begin < source.n_out; begin += kSlice) {
      const int64_t end = std::min(begin + kSlice, source.n_out);
      source.read_rows(begin, end, rows.data());
      const int64_t count = (end - begin) * source.n_in;
      if (dtype_ == DType::kBF16)
        primitives::narrow(rows.data(), count, plain.view().row<BFloat16>(begin));
      else
        std::copy_n(rows.data(), count, plain.view().row<float>(begin));
    }
    Memory from({{source.n_in, source.n_out}, dnnl_type(dtype_), Memory::format_tag::ba},
                cpu_engine(), plain.view().bytes());
    dnnl::reorder(from, weights_).execute(stream_, from, weights_);
    stream_.wait();
  }

  DType dtype_;
  mutable dnnl::stream stream_;
  Memory weights_;  // (n_in, n_out) in oneDNN's layout
  Memory bias_;     // (1, n_out) f32, or empty
  std::string implementation_;
  mutable std::mutex mutex_;
  mutable std::map<Call, dnnl::matmul> primitives_;
};

}  // namespace

std::unique_ptr<Linear> make_onednn_linear(const MatrixSource& source, DType dtype) {
  if (dtype == DType::kBF16 && !has_bf16_products()) return nullptr;
  try {
    return std::make_unique<OnednnLinear>(source, dtype);
  } catch (const dnnl::error& e) {
    if (e.status == dnnl_unimplemented) return nullptr;
    throw Error(std::string("oneDNN: ") + e.what());
  }
}

}  // namespace sluice::impl::cpu::gemm
