#include "baselines.h"

#ifdef SLUICE_BENCH_OPENBLAS
#include <cblas.h>
#endif

#include <atomic>
#include <numeric>
#include <random>

#include "backend/cpu/gemm/linear.h"
#include "core/threads.h"

namespace sluice::impl::bench {
namespace {

struct Size {
  int64_t n_out, n_in, count;
};

std::vector<Size> linear_sizes(const ModelSpec& spec) {
  return {{spec.query_width() + 2 * spec.kv_width(), spec.d_model, spec.n_layers},
          {spec.d_model, spec.query_width(), spec.n_layers},
          {spec.d_inner * (spec.gated ? 2 : 1), spec.d_model, spec.n_layers},
          {spec.d_model, spec.d_inner, spec.n_layers}};
}

MatrixSource random_matrix(int64_t n_out, int64_t n_in) {
  MatrixSource source;
  source.n_out = n_out;
  source.n_in = n_in;
  source.read_rows = [n_in](int64_t begin, int64_t end, float* out) {
    std::mt19937 random(static_cast<uint32_t>(begin));
    for (int64_t i = 0; i < (end - begin) * n_in; ++i)
      out[i] = static_cast<float>(random() >> 8) * 0x1p-24f - 0.5f;
  };
  return source;
}

Buffer random_rows(DType dtype, int64_t n_rows, int64_t width) {
  Buffer buffer = host_buffer(dtype, {n_rows, width});
  std::vector<float> rows(static_cast<size_t>(n_rows * width));
  random_matrix(n_rows, width).read_rows(0, n_rows, rows.data());
  for (size_t i = 0; i < rows.size(); ++i) {
    if (dtype == DType::kBF16)
      buffer.view().data<BFloat16>()[i] = to_bfloat16(rows[i]);
    else
      buffer.view().data<float>()[i] = rows[i];
  }
  return buffer;
}

// The products of one provider of the CPU backend.
class CpuProducts final : public BareProducts {
 public:
  using Make = std::unique_ptr<cpu::gemm::Linear> (*)(const MatrixSource&, DType);

  static std::unique_ptr<CpuProducts> make(std::string name, Make make, const ModelSpec& spec,
                                           DType dtype, int64_t n_rows) {
    auto products = std::make_unique<CpuProducts>();
    products->name_ = std::move(name);
    for (const Size& size : linear_sizes(spec)) {
      Item item;
      item.weights = make(random_matrix(size.n_out, size.n_in), dtype);
      if (item.weights == nullptr) return nullptr;
      item.x = random_rows(dtype, n_rows, size.n_in);
      item.out = host_buffer(dtype, {n_rows, size.n_out});
      item.count = size.count;
      products->items_.push_back(std::move(item));
    }
    return products;
  }

  std::string name() const override { return name_; }
  void run() override {
    for (const Item& item : items_)
      for (int64_t i = 0; i < item.count; ++i)
        item.weights->run(
            {.weights = item.weights.get(), .x = item.x.view(), .out = item.out.view()});
  }

 private:
  struct Item {
    std::unique_ptr<cpu::gemm::Linear> weights;
    Buffer x, out;
    int64_t count;
  };
  std::string name_;
  std::vector<Item> items_;
};

#ifdef SLUICE_BENCH_OPENBLAS
class OpenblasProducts final : public BareProducts {
 public:
  OpenblasProducts(const ModelSpec& spec, int64_t n_rows) : n_rows_(n_rows) {
    openblas_set_num_threads(threads());
    for (const Size& size : linear_sizes(spec)) {
      Item item{size, host_buffer(DType::kF32, {size.n_out, size.n_in}),
                random_rows(DType::kF32, n_rows, size.n_in),
                host_buffer(DType::kF32, {n_rows, size.n_out})};
      random_matrix(size.n_out, size.n_in)
          .read_rows(0, size.n_out, item.weights.view().data<float>());
      items_.push_back(std::move(item));
    }
  }
  std::string name() const override { return "OpenBLAS sgemm"; }
  void run() override {
    for (const Item& item : items_)
      for (int64_t i = 0; i < item.size.count; ++i)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<int>(n_rows_),
                    static_cast<int>(item.size.n_out), static_cast<int>(item.size.n_in), 1.0f,
                    item.x.view().data<float>(), static_cast<int>(item.size.n_in),
                    item.weights.view().data<float>(), static_cast<int>(item.size.n_in), 0.0f,
                    item.out.view().data<float>(), static_cast<int>(item.size.n_out));
  }

 private:
  struct Item {
    Size size;
    Buffer weights, x, out;
  };
  int64_t n_rows_;
  std::vector<Item> items_;
};
#endif

}  // namespace

std::vector<std::unique_ptr<BareProducts>> bare_products(const ModelSpec& spec, DType dtype,
                                                         int64_t n_rows) {
  std::vector<std::unique_ptr<BareProducts>> all;
  const auto add = [&](std::unique_ptr<BareProducts> products) {
    if (products != nullptr) all.push_back(std::move(products));
  };
  add(CpuProducts::make(
      "own kernels",
      [](const MatrixSource& m, DType d) { return cpu::gemm::make_packed_linear(m, d); }, spec,
      dtype, n_rows));
  add(CpuProducts::make("oneDNN", cpu::gemm::make_onednn_linear, spec, dtype, n_rows));
#ifdef SLUICE_BENCH_OPENBLAS
  if (dtype == DType::kF32) add(std::make_unique<OpenblasProducts>(spec, n_rows));
#endif
  return all;
}

double linear_flops(const ModelSpec& spec, int64_t n_rows) {
  double flops = 0;
  for (const Size& size : linear_sizes(spec))
    flops += 2.0 * static_cast<double>(size.n_out) * static_cast<double>(size.n_in) *
             static_cast<double>(size.count) * static_cast<double>(n_rows);
  return flops;
}

double attention_flops(const ModelSpec& spec, int64_t n_tokens) {
  const auto n = static_cast<double>(n_tokens);
  return 4.0 * static_cast<double>(spec.query_width() * spec.n_layers) * n * (n + 1) / 2;
}

uint64_t read_in_streams(std::span<const uint64_t> words) {
  constexpr size_t kStreams = 8, kLine = 8;  // words of one cache line
  const size_t n = words.size() / kStreams / kLine * kLine;
  uint64_t sums[kStreams][kLine] = {};
  for (size_t i = 0; i < n; i += kLine)
    for (size_t s = 0; s < kStreams; ++s)
      for (size_t j = 0; j < kLine; ++j) sums[s][j] += words[s * n + i + j];
  uint64_t total = 0;
  for (const auto& stream : sums) total = std::accumulate(stream, stream + kLine, total);
  for (const uint64_t word : words.subspan(kStreams * n)) total += word;
  return total;
}

PlainRead::PlainRead(int64_t n_bytes) : buffer_(host_buffer(DType::kF32, {(n_bytes + 3) / 4})) {}

uint64_t PlainRead::run() const {
  const auto* words = reinterpret_cast<const uint64_t*>(buffer_.view().bytes());
  std::atomic<uint64_t> total = 0;
  parallel_for(buffer_.view().rows() / 2, 1 << 16, [&](int64_t begin, int64_t end) {
    total += read_in_streams({words + begin, static_cast<size_t>(end - begin)});
  });
  return total;
}

}  // namespace sluice::impl::bench
