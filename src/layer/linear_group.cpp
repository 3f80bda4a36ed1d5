#include "layer/linear_group.h"

namespace sluice::impl {

const Subspace* LinearGroup::subspace(int64_t rank) const {
  const auto found = subspaces_.find(rank);
  return found == subspaces_.end() ? nullptr : &found->second;
}

void LinearGroup::add_subspace(Backend& backend, const MatrixSource& source,
                               std::shared_ptr<const SubspaceBasis> basis) {
  Subspace& subspace = subspaces_[basis->rank()];
  if (subspace.basis != nullptr) return;
  subspace.image = backend.pack_image(source, *basis);
  subspace.basis = std::move(basis);
}

void LinearGroup::add_columns(Backend& backend, MatrixSource source) {
  if (columns_ == nullptr) columns_ = backend.pack_columns(std::move(source));
}

void LinearGroup::add_host_subspace(Backend& backend, int64_t rank, std::span<const float> vectors,
                                    std::vector<float> bias) {
  Subspace& subspace = subspaces_.at(rank);
  if (subspace.host != nullptr) return;
  auto images = images_of(backend, *dense_, vectors, bias);
  subspace.host =
      std::make_unique<HostSubspace>(HostSubspace{.vectors = {vectors.begin(), vectors.end()},
                                                  .images = std::move(images),
                                                  .bias = std::move(bias)});
}

int64_t LinearGroup::prepared_bytes() const {
  int64_t bytes = columns_ == nullptr ? 0 : columns_->n_in() * columns_->column_bytes();
  for (const auto& [rank, subspace] : subspaces_) {
    bytes += subspace.basis->bytes() + subspace.image->bytes();
    if (subspace.host != nullptr)
      bytes +=
          static_cast<int64_t>(sizeof(float)) * (rank * (dense_->n_in() + dense_->n_out()) +
                                                 static_cast<int64_t>(subspace.host->bias.size()));
  }
  return bytes;
}

std::vector<float> images_of(Backend& backend, const LinearWeights& weights,
                             std::span<const float> directions, std::span<const float> bias) {
  const int64_t n = static_cast<int64_t>(directions.size()) / weights.n_in();
  const auto n_out = static_cast<size_t>(weights.n_out());
  const Buffer wide = backend.allocate(DType::kF32, {n, weights.n_in()});
  const Buffer rows = backend.allocate(backend.compute_dtype(), {n, weights.n_in()});
  const Buffer products = backend.allocate(DType::kF32, {n, weights.n_out()});
  backend.upload(ConstTensor(directions.data(), DType::kF32, wide.view().shape()), wide.view());
  backend.convert(wide.view(), rows.view());
  backend.linear({.weights = &weights, .x = rows.view(), .out = products.view()});
  std::vector<float> images(static_cast<size_t>(n) * n_out);
  backend.download(products.view(), Tensor(images.data(), DType::kF32, {n, weights.n_out()}));
  if (!bias.empty())
    for (size_t i = 0; i < images.size(); ++i) images[i] -= bias[i % n_out];
  return images;
}

}  // namespace sluice::impl
