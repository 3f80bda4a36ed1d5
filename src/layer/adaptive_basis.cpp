#include "layer/adaptive_basis.h"

#include <algorithm>
#include <cmath>

namespace sluice::impl {
namespace {

// A row of a tensor on the device as f32 on the host.
void read_row(Backend& backend, const ConstTensor& rows, int64_t row, std::span<float> out) {
  const auto n = static_cast<int64_t>(out.size());
  const Buffer wide = backend.allocate(DType::kF32, {1, n});
  backend.convert(rows.rows_from(row, 1), wide.view());
  backend.download(wide.view(), Tensor(out.data(), DType::kF32, {1, n}));
}

double dot(const float* a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < b.size(); ++i) sum += double{a[i]} * b[i];
  return sum;
}

double norm(const std::vector<double>& a) {
  double sum = 0;
  for (const double x : a) sum += x * x;
  return std::sqrt(sum);
}

void take_away(const float* direction, std::vector<double>& row) {
  const double share = dot(direction, row);
  for (size_t i = 0; i < row.size(); ++i) row[i] -= share * direction[i];
}

}  // namespace

AdaptiveBasis::AdaptiveBasis(Backend& backend, const LinearGroup& group, int64_t rank,
                             int64_t capacity, double epsilon)
    : backend_(backend),
      group_(group),
      calibrated_(*group.subspace(rank)),
      rank_(rank),
      capacity_(capacity),
      epsilon_(epsilon),
      candidates_(static_cast<size_t>(kAdditions * group.dense().n_in())) {
  SLUICE_CHECK(calibrated_.host != nullptr && capacity > 0);
}

void AdaptiveBasis::take(const ConstTensor& x, const ConstTensor& coordinates,
                         std::span<const TokenPath> paths) {
  const auto d = static_cast<size_t>(x.row_elements());
  std::vector<float> g(static_cast<size_t>(coordinates.row_elements()));
  for (size_t row = 0; row < paths.size(); ++row) {
    if (paths[row] == TokenPath::kBypassed) continue;
    if (!extras_.empty()) {
      read_row(backend_, coordinates, static_cast<int64_t>(row), g);
      double all = 0;
      for (const float c : g) all += double{c} * c;
      for (size_t i = 0; all > 0 && i < extras_.size(); ++i) {
        const double c = g[static_cast<size_t>(rank_) + i];
        energies_[i] += c * c / all;
      }
    }
    if (paths[row] == TokenPath::kSlow)
      read_row(backend_, x, static_cast<int64_t>(row),
               std::span(candidates_).subspan(static_cast<size_t>(n_slow_++ % kAdditions) * d, d));
  }
  n_tokens_ += static_cast<int64_t>(paths.size());
}

std::vector<float> AdaptiveBasis::rest_of(const float* row) const {
  const auto d = static_cast<size_t>(group_.dense().n_in());
  std::vector<double> rest(row, row + d);
  const double all = norm(rest);
  // Twice: what the first pass leaves of a direction is round-off of a row that may be far larger
  // than the rest.
  for (int pass = 0; pass < 2; ++pass) {
    for (size_t j = 0; j < static_cast<size_t>(rank_); ++j)
      take_away(calibrated_.host->vectors.data() + j * d, rest);
    for (const Extra& extra : extras_) take_away(extra.direction.data(), rest);
  }
  const double left = norm(rest);
  // A rest near round-off has no direction of its own.
  if (!std::isfinite(all) || left <= std::max(epsilon_, 1e-4) * all) return {};
  std::vector<float> direction(d);
  for (size_t i = 0; i < d; ++i) direction[i] = static_cast<float>(rest[i] / left);
  return direction;
}

bool AdaptiveBasis::make_room() {
  if (static_cast<int64_t>(extras_.size()) < capacity_) return true;
  const auto weakest =
      std::min_element(extras_.begin(), extras_.end(), [](const Extra& a, const Extra& b) {
        return a.is_new != b.is_new ? b.is_new : a.energy < b.energy;  // the new ones last
      });
  if (weakest->is_new) return false;
  extras_.erase(weakest);
  return true;
}

int64_t AdaptiveBasis::grow() {
  for (size_t i = 0; i < extras_.size(); ++i) {
    extras_[i].energy = extras_[i].energy / 2 + energies_[i];
    extras_[i].is_new = false;
  }
  const auto d = static_cast<size_t>(group_.dense().n_in());
  const auto n_candidates = static_cast<size_t>(std::min(n_slow_, kAdditions));
  std::vector<float> joined;
  for (size_t i = 0; i < n_candidates; ++i) {
    std::vector<float> direction = rest_of(candidates_.data() + i * d);
    if (direction.empty()) continue;
    if (!make_room()) break;
    joined.insert(joined.end(), direction.begin(), direction.end());
    extras_.push_back({.direction = std::move(direction), .image = {}, .is_new = true});
  }
  n_slow_ = 0;
  const auto n = static_cast<int64_t>(joined.size() / d);
  if (n > 0) {
    const auto n_out = static_cast<size_t>(group_.dense().n_out());
    const std::vector<float> images =
        images_of(backend_, group_.dense(), joined, calibrated_.host->bias);
    auto extra = extras_.end() - n;  // those that joined are the last
    for (size_t i = 0; i < static_cast<size_t>(n); ++i, ++extra)
      extra->image.assign(images.begin() + static_cast<std::ptrdiff_t>(i * n_out),
                          images.begin() + static_cast<std::ptrdiff_t>((i + 1) * n_out));
    rebuild();
  }
  energies_.assign(extras_.size(), 0.0);
  return n;
}

void AdaptiveBasis::rebuild() {
  const HostSubspace& host = *calibrated_.host;
  const int64_t n_in = group_.dense().n_in(), n_out = group_.dense().n_out();
  const int64_t rank = rank_ + n_extra();
  std::vector<float> vectors = host.vectors;
  for (const Extra& extra : extras_)
    vectors.insert(vectors.end(), extra.direction.begin(), extra.direction.end());
  own_basis_ = backend_.make_basis(vectors, rank, n_in);
  MatrixSource source{.n_out = n_out, .n_in = rank, .read_rows = {}, .bias = host.bias};
  source.read_rows = [&](int64_t begin, int64_t end, float* out) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t j = 0; j < rank_; ++j)
        *out++ = host.images[static_cast<size_t>(j * n_out + row)];
      for (const Extra& extra : extras_) *out++ = extra.image[static_cast<size_t>(row)];
    }
  };
  own_image_ = backend_.pack_linear(std::move(source));
}

}  // namespace sluice::impl
