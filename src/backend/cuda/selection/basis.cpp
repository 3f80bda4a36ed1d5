// Selection in a basis: what the device needs of it, and how far coordinates may be off.

#include <algorithm>
#include <map>
#include <mutex>

#include "backend/cuda/selection/pass.h"
#include "core/dtype.h"

namespace sluice::impl::cuda::selection {
namespace {

// Unit rows and vectors are rounded to bf16 and multiplied on tensor cores: the error of all of a
// row's coordinates together, as a vector. A step of these products is off by 18 units of 2^-23 of
// the largest of its numbers: partial sums, which together are the coordinates of a row's first
// elements, so that their squares add up to 1 at most; and products, whose squares over all vectors
// and a row's elements do the same. That makes the root of 2 times 18 / 16 units per element; the
// rest is for norms and scales in f32.
double coordinate_error(int64_t padded, bool bf16) {
  const double sums = (2.0 * static_cast<double>(padded) + 16) * 0x1p-23;
  return bf16 ? sums : sums + 1.01 * 0x1p-9;
}

// The vectors that are used, in bf16 and padded, and a bound on how far they deviate from
// orthonormal ones.
std::shared_ptr<const SelectionVectors> make_basis(const std::shared_ptr<Context>& context,
                                                   const SelectionBasis& basis, int64_t padded) {
  const int64_t rank = std::min<int64_t>(basis.rank(), kMostRank), d = basis.d_model();
  const auto used = basis.vectors().first(static_cast<size_t>(rank * d));
  std::vector<uint16_t> values(static_cast<size_t>(rank * padded));
  for (int64_t i = 0; i < rank; ++i)
    for (int64_t j = 0; j < d; ++j)
      values[static_cast<size_t>(i * padded + j)] =
          to_bfloat16(used[static_cast<size_t>(i * d + j)]).bits;
  const double deviation =
      rank == basis.rank()
          ? basis.deviation(DType::kBF16)
          : SelectionBasis(rank, d, {used.begin(), used.end()}).deviation(DType::kBF16);
  return std::make_shared<const SelectionVectors>(SelectionVectors{
      DeviceArray<uint16_t>(context, std::span<const uint16_t>(values)), deviation});
}

// The same for as long as somebody has it, who then has the basis and the context too.
std::shared_ptr<const SelectionVectors> share_basis(const std::shared_ptr<Context>& context,
                                                    const SelectionBasis& basis, int64_t padded) {
  using Key = std::pair<const Context*, const SelectionBasis*>;
  static std::mutex mutex;
  static std::map<Key, std::weak_ptr<const SelectionVectors>> known;
  const std::lock_guard lock(mutex);
  std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
  auto& mine = known[{context.get(), &basis}];
  auto shared = mine.lock();
  if (shared == nullptr) mine = shared = make_basis(context, basis, padded);
  return shared;
}

// Whether coordinates of n tokens may save more than they cost, before it is known how many are
// inherited: a pass begins in the basis when the columns kept, and an eighth of its tokens (at half
// of them on average), are as many as three times the directions. With 8192 tokens a tenth of
// which are representatives, what is launched in vain takes longer than the products.
bool may_pay(int64_t n_columns, int64_t n, int rank) { return n_columns + n / 16 >= 3 * rank; }

}  // namespace

// Other rules, and other GPUs, compare at full width: sets are the same.
void CudaSelector::take_basis() {
  if (spec_.basis == nullptr || !covers() || for_analysis()) return;
  rank_ = static_cast<int>(std::min<int64_t>(spec_.basis->rank(), kMostRank));
  width_ = round_up(rank_, 64);
  device_basis_ = share_basis(context_, *spec_.basis, padded_);
  basis_progress_ = DeviceArray<BasisProgress>(context_, 1);
}

// docs/algorithm.md, section 5, has the bound. Coordinates are rounded to bf16 once more.
BasisView CudaSelector::view_basis(const Pass& pass, int64_t n_tokens) const {
  const bool always = spec_.basis_use == BasisUse::kAlways;
  if (rank_ == 0) return {};
  if (!always && (given_up_ || !may_pay(n_columns_, pass.rows.rows(), rank_))) return {};
  const double deviation = device_basis_->deviation;
  const double row_error = (1 + deviation) * coordinate_error(padded_, bf16_) + 0x1p-22;
  const double off = row_error + (1 + deviation) * 1.01 * 0x1p-9;
  BasisView view;
  view.rank = rank_;
  view.width = width_;
  view.always = always;
  view.error = (1 + deviation) * (2 * off + off * off + product_error(width_, true)) + deviation;
  view.row_error = row_error;
  view.deviation = deviation;
  view.vectors = device_basis_->vectors.data();
  view.rows = pass.coordinates;
  view.listed = pass.listed_coordinates;
  view.columns = column_coordinates_.data();
  view.rest = pass.rest;
  view.listed_rest = pass.listed_rest;
  view.column_rest = column_rest_.data();
  view.open = pass.open;
  view.below = pass.below;
  view.n_items = ceil_div(n_tokens, kItemRows) * pass.tiles;
  view.again = pass.again;
  view.progress = basis_progress_.data();
  return view;
}

}  // namespace sluice::impl::cuda::selection
