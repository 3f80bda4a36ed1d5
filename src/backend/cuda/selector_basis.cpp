// Selection in a basis: what the device needs of it, and how far coordinates may be off.

#include <algorithm>
#include <map>
#include <mutex>

#include "backend/cuda/selector_pass.h"
#include "core/dtype.h"

namespace sluice::cuda {
namespace {

// Unit rows and vectors are rounded to bf16 and multiplied on matrix units: the error of all of a
// row's coordinates together, as a vector. A step of these products is off by 18 units of 2^-23 of
// the largest of its numbers: partial sums, which together are the coordinates of a row's first
// elements, so that their squares add up to 1 at most; and products, whose squares over all vectors
// and a row's elements do the same. That makes the root of 2 times 18 / 16 units per element; the
// rest is for norms and scales in f32.
double coordinate_error(int64_t padded, bool bf16) {
  const double sums = (2.0 * static_cast<double>(padded) + 16) * 0x1p-23;
  return bf16 ? sums : sums + 1.01 * 0x1p-9;
}

using Vectors = std::shared_ptr<const DeviceArray<uint16_t>>;

// The first `rank` vectors in bf16, padded; the same memory for as long as somebody has it, who
// then has the basis and the context too.
Vectors vectors_on(const std::shared_ptr<Context>& context, const SelectionBasis& basis,
                   int64_t rank, int64_t padded) {
  static std::mutex mutex;
  static std::map<std::pair<const Context*, const SelectionBasis*>,
                  std::weak_ptr<const DeviceArray<uint16_t>>>
      known;
  const std::lock_guard lock(mutex);
  std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
  auto& mine = known[{context.get(), &basis}];
  if (Vectors there = mine.lock()) return there;
  const int64_t d = basis.d_model();
  std::vector<uint16_t> values(static_cast<size_t>(rank * padded));
  for (int64_t i = 0; i < rank; ++i)
    for (int64_t j = 0; j < d; ++j)
      values[static_cast<size_t>(i * padded + j)] =
          to_bfloat16(basis.vectors()[static_cast<size_t>(i * d + j)]).bits;
  Vectors made =
      std::make_shared<const DeviceArray<uint16_t>>(context, std::span<const uint16_t>(values));
  mine = made;
  return made;
}

}  // namespace

// Other rules, and other GPUs, compare at full width: sets are the same.
void CudaSelector::take_basis() {
  if (spec_.basis == nullptr || !covers() || for_analysis()) return;
  const SelectionBasis& basis = *spec_.basis;
  rank_ = static_cast<int>(std::min<int64_t>(basis.rank(), kMostRank));
  width_ = round_up(rank_, 64);
  vectors_ = vectors_on(context_, basis, rank_, padded_);
  basis_progress_ = DeviceArray<BasisProgress>(context_, 1);
}

// docs/algorithm.md, section 5, has the bound. Coordinates are rounded to bf16 once more.
BasisView CudaSelector::view_basis(const Pass& pass) const {
  if (rank_ == 0) return {};
  const double deviation = spec_.basis->deviation(DType::kBF16);
  const double row_error = (1 + deviation) * coordinate_error(padded_, bf16_) + 0x1p-22;
  const double off = row_error + (1 + deviation) * 1.01 * 0x1p-9;
  BasisView view;
  view.rank = rank_;
  view.width = width_;
  view.always = spec_.basis_use == BasisUse::kAlways;
  view.error = (1 + deviation) * (2 * off + off * off + product_error(width_, true)) + deviation;
  view.row_error = row_error;
  view.deviation = deviation;
  view.vectors = vectors_->data();
  view.rows = pass.coordinates;
  view.listed = pass.listed_coordinates;
  view.columns = column_coordinates_.data();
  view.rest = pass.rest;
  view.listed_rest = pass.listed_rest;
  view.column_rest = column_rest_.data();
  view.open = pass.open;
  view.again = pass.again;
  view.progress = basis_progress_.data();
  return view;
}

}  // namespace sluice::cuda
