#include "model/tensor_share.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "model/join_devices.h"
#include "model/weight_type.h"

namespace sluice::impl {
namespace {

// The part of rank i of n: whole units, the last one cut.
Range part_of(int64_t size, int64_t unit, int64_t i, int64_t n) {
  const int64_t n_units = (size + unit - 1) / unit;
  const auto border = [&](int64_t k) { return std::min(n_units * k / n * unit, size); };
  return {border(i), border(i + 1)};
}

// Inner columns that a border may not cut: a block of the MLP's last matrix, or 16 bytes of bf16,
// which is what rows have to be aligned to for the fastest products. Where these are fewer than
// ranks, a block of q8_0, which blocks made while loading become then, or 16 bytes again.
int64_t inner_unit(const ModelDescription& description, const WeightStore& store,
                   std::optional<DType> weights, int n) {
  constexpr int64_t kAligned = 8;
  const int64_t d_inner = description.spec.d_inner;
  int64_t unit = kAligned;
  if (weights) unit = std::max(unit, block_size(fitting_weight_type(*weights, d_inner)).elements);
  for (const LayerNames& layer : description.names.layers)
    for (const MatrixPart& part : layer.mlp_out)
      if (const StoredTensor* tensor = store.find(part.weight))
        unit = std::max(unit, block_size(tensor->dtype).elements);
  for (const int64_t smaller : {unit, block_size(DType::kQ8_0).elements, kAligned})
    if (smaller <= unit && d_inner / smaller >= n) return smaller;
  return 1;
}

void append(MatrixNames& names, const MatrixNames& more) {
  names.insert(names.end(), more.begin(), more.end());
}

MatrixNames columns_of(MatrixNames names, Range columns, int64_t n_in, bool with_biases) {
  for (MatrixPart& part : names) {
    part.n_stored_columns = part.stored_columns(n_in);
    part.first_column += columns.begin;
    if (!with_biases) part.bias.clear();
  }
  return names;
}

}  // namespace

MatrixNames rows_of(const MatrixNames& names, Range rows) {
  MatrixNames some;
  int64_t at = 0;
  for (const MatrixPart& part : names) {
    const int64_t begin = std::max(rows.begin, at), end = std::min(rows.end, at + part.n_out);
    if (begin < end) {
      MatrixPart& rest = some.emplace_back(part);
      rest.n_stored = part.stored_rows();
      rest.first_row += begin - at;
      rest.n_out = end - begin;
    }
    at += part.n_out;
  }
  return some;
}

std::vector<TensorRanges> divide_tensors(const ModelDescription& description,
                                         const WeightStore& store, std::optional<DType> weights,
                                         int n) {
  const ModelSpec& spec = description.spec;
  if (n > spec.n_kv_heads)
    throw Error(
        fmt::format("{} ranks cannot share the {} key heads of this model", n, spec.n_kv_heads),
        fmt::format("mpirun -n {} or less, or --split pipeline", spec.n_kv_heads));
  if (n > std::min({spec.d_inner, spec.vocab, spec.d_model}))
    throw Error(fmt::format("{} ranks cannot share {} inner columns, a width of {} and a "
                            "vocabulary of {}",
                            n, spec.d_inner, spec.d_model, spec.vocab),
                "fewer ranks, or --split pipeline");
  const int64_t unit = inner_unit(description, store, weights, n);
  std::vector<TensorRanges> all;
  for (int i = 0; i < n; ++i)
    all.push_back({.kv_heads = part_of(spec.n_kv_heads, 1, i, n),
                   .inner = part_of(spec.d_inner, unit, i, n),
                   .vocab = part_of(spec.vocab, 1, i, n),
                   .model = part_of(spec.d_model, 1, i, n)});
  return all;
}

ModelDescription description_of(const ModelDescription& whole, const TensorRanges& ranges,
                                bool with_biases) {
  ModelDescription own = whole;
  ModelSpec& spec = own.spec;
  const int64_t group = spec.n_heads / spec.n_kv_heads, q = spec.query_width(),
                kv = spec.kv_width(), inner = spec.d_inner;
  spec.n_kv_heads = ranges.kv_heads.size();
  spec.n_heads = group * spec.n_kv_heads;
  spec.d_inner = ranges.inner.size();
  const auto columns = [&](int64_t heads, int64_t first) {  // of the heads of each key head
    const int64_t width = heads * spec.head_dim;
    return Range{first + width * ranges.kv_heads.begin, first + width * ranges.kv_heads.end};
  };
  for (LayerNames& layer : own.names.layers) {
    const LayerNames all = layer;
    layer.qkv = rows_of(all.qkv, columns(group, 0));
    append(layer.qkv, rows_of(all.qkv, columns(1, q)));
    append(layer.qkv, rows_of(all.qkv, columns(1, q + kv)));
    layer.attention_out = columns_of(all.attention_out, columns(group, 0), q, with_biases);
    layer.mlp_in = rows_of(all.mlp_in, ranges.inner);
    if (spec.gated)  // up, behind the gate
      append(layer.mlp_in,
             rows_of(all.mlp_in, {inner + ranges.inner.begin, inner + ranges.inner.end}));
    layer.mlp_out = columns_of(all.mlp_out, ranges.inner, inner, with_biases);
  }
  own.names.head = rows_of(whole.names.head, ranges.vocab);
  return own;
}

std::span<float> TensorShare::host_rows(Backend& backend, const ConstTensor& rows) {
  rows_.resize(static_cast<size_t>(rows.shape().numel()));
  backend.download(rows, Tensor(rows_.data(), DType::kF32, rows.shape()));
  return rows_;
}

void TensorShare::connect(Backend& backend) {
  if (backend.device() != Device::kCpu) device_sums_ = join_devices(ranks_, backend.device_ranks());
}

void TensorShare::sum(Backend& backend, const Tensor& rows) {
  SLUICE_CHECK(rows.contiguous() && rows.dtype() == DType::kF32);
  if (rows.device() == Device::kCpu)
    return ranks_.add_all({rows.data<float>(), static_cast<size_t>(rows.shape().numel())});
  if (device_sums_ != nullptr) return device_sums_->add_all(rows);
  ranks_.add_all(host_rows(backend, rows));
  backend.upload(ConstTensor(rows_.data(), DType::kF32, rows.shape()), rows);
}

void TensorShare::gather(Backend& backend, const ConstTensor& own, const Tensor& out) {
  SLUICE_CHECK(own.dtype() == out.dtype() && out.contiguous());
  const auto n_rows = static_cast<size_t>(own.rows());
  const auto bytes_of = [](const ConstTensor& rows) {
    return std::vector<std::byte>(
        static_cast<size_t>(rows.shape().numel() * element_bytes(rows.dtype())));
  };
  std::vector<std::byte> mine = bytes_of(own), all = bytes_of(out);
  backend.download(own, Tensor(mine.data(), own.dtype(), own.shape()));
  size_t at = 0;  // bytes of a row that are there
  for (const std::vector<std::byte>& part : ranks_.gather_all(mine)) {
    const size_t width = part.size() / n_rows;
    for (size_t row = 0; row < n_rows; ++row)
      std::copy_n(part.data() + row * width, width, all.data() + row * all.size() / n_rows + at);
    at += width;
  }
  SLUICE_CHECK(at * n_rows == all.size());
  backend.upload(ConstTensor(all.data(), out.dtype(), out.shape()), out);
}

void TensorShare::bring_scores(Backend& backend, const ConstTensor& own, const Tensor& out) {
  SLUICE_CHECK(own.row_elements() == ranges().vocab.size() && out.device() == Device::kCpu);
  const int to = ranks_.size() - 1;
  std::span<float> scores = host_rows(backend, own);
  if (!last()) return ranks_.send(std::as_bytes(scores), to);
  const int64_t n_rows = out.rows();
  for (int rank = to; rank >= 0; --rank) {  // its own first, which are in rows_ already
    const Range& vocab = all_[static_cast<size_t>(rank)].vocab;
    if (rank < to) {
      rows_.resize(static_cast<size_t>(n_rows * vocab.size()));
      ranks_.receive(std::as_writable_bytes(std::span(rows_)), rank);
    }
    for (int64_t row = 0; row < n_rows; ++row)
      std::copy_n(rows_.data() + row * vocab.size(), vocab.size(),
                  out.data<float>() + row * out.row_stride() + vocab.begin);
  }
}

}  // namespace sluice::impl
