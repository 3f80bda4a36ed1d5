#include "backend/cpu/selection/gram/columns.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/primitives/rows.h"
#include "core/threads.h"

namespace sluice::impl::cpu::selection {
namespace {

// Elements worth a thread.
constexpr int64_t kThreadColumnElements = 16384;

// Copies groups of kBytes, one after the other, to or from places `step` bytes apart.
template <int64_t kBytes>
void scatter_groups(const std::byte* from, int64_t n, int64_t step, std::byte* to) {
  for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * step, from + i * kBytes, kBytes);
}
template <int64_t kBytes>
void gather_groups(const std::byte* from, int64_t n, int64_t step, std::byte* to) {
  for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * kBytes, from + i * step, kBytes);
}

}  // namespace

Columns::Columns(const gemm::Kernel& kernel, int64_t d_model, size_t n_masks)
    : kernel_(&kernel), d_model_(d_model), masks_(n_masks) {
  SLUICE_CHECK(group_bytes() == 4 || group_bytes() == 8);
}

// Chunks stay for the next sequence; what is left in them is multiplied by zero inverse norms.
void Columns::clear() {
  columns_.clear();
  inverses_.clear();
  residuals_.clear();
  rounding_.clear();
  for (auto& mask : masks_) mask.clear();
  firsts_.clear();
  hashed_column_ = -1;
}

void Columns::grow(int64_t n_columns) {
  const auto n = static_cast<size_t>(kernel_->panels(n_columns) * kernel_->nr);
  inverses_.resize(n, 0.0f);
  residuals_.resize(n, 0.0f);
  rounding_.resize(n / static_cast<size_t>(kernel_->nr), 0.0f);
  for (auto& mask : masks_) mask.resize(n, -INFINITY);
  while (n_columns > static_cast<int64_t>(panels_.size()) * chunk_columns()) {
    panels_.push_back(
        host_buffer(kernel_->b_dtype, {kChunkPanels, kernel_->panel_elements(d_model_)}));
    if (keeps_exact_rows_)
      exact_rows_.push_back(host_buffer(DType::kF32, {chunk_columns(), d_model_}));
  }
}

int64_t Columns::append(const Rows& rows, std::span<const int64_t> picked) {
  const int64_t first = size(), n = static_cast<int64_t>(picked.size());
  const bool rounded = kernel_->b_dtype == DType::kBF16 && rows.source_dtype() == DType::kF32;
  if (first == 0 && rounded != keeps_exact_rows_) {
    panels_.clear();
    exact_rows_.clear();
    keeps_exact_rows_ = rounded;
  }
  grow(first + n);
  for (int64_t i = 0; i < n; ++i) {
    const Row& row = columns_.emplace_back(rows[picked[static_cast<size_t>(i)]]);
    inverses_[static_cast<size_t>(first + i)] = row.packed_inverse;
    residuals_[static_cast<size_t>(first + i)] = row.residual;
    float& rounding = rounding_[static_cast<size_t>((first + i) / kernel_->nr)];
    rounding = std::max(rounding, row.rounding);
  }
  parallel_for(n, 1 + kThreadColumnElements / d_model_, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) pack(rows, picked[static_cast<size_t>(i)], first + i);
  });
  return first;
}

void Columns::pack(const Rows& rows, int64_t i, int64_t column) {
  auto* to = const_cast<std::byte*>(first_group(column));
  if (group_bytes() == 8)
    scatter_groups<8>(rows.packed(i), n_groups(), kernel_->nr * 8, to);
  else
    scatter_groups<4>(rows.packed(i), n_groups(), kernel_->nr * 4, to);

  if (!keeps_exact_rows_) return;
  const auto chunk = static_cast<size_t>(column / chunk_columns());
  float* exact_row = exact_rows_[chunk].view().row<float>(column % chunk_columns());
  std::memcpy(exact_row, rows.exact(i, nullptr), static_cast<size_t>(d_model_) * sizeof(float));
}

const std::byte* Columns::panel(int64_t panel, int64_t k) const {
  const Tensor& chunk = panels_[static_cast<size_t>(panel / kChunkPanels)].view();
  return chunk.bytes() +
         (panel % kChunkPanels * kernel_->panel_elements(d_model_) + k * kernel_->nr) *
             element_bytes(kernel_->b_dtype);
}

// Where a column's kq elements of depth 0 stand; those of the next depths follow a panel row apart.
const std::byte* Columns::first_group(int64_t column) const {
  return panel(column / kernel_->nr, 0) + column % kernel_->nr * group_bytes();
}

void Columns::unpack(int64_t column, std::byte* to) const {
  if (group_bytes() == 8)
    gather_groups<8>(first_group(column), n_groups(), kernel_->nr * 8, to);
  else
    gather_groups<4>(first_group(column), n_groups(), kernel_->nr * 4, to);
}

const float* Columns::exact(int64_t column, float* scratch) const {
  if (!exact_rows_.empty())
    return exact_rows_[static_cast<size_t>(column / chunk_columns())].view().row<float>(
        column % chunk_columns());
  if (kernel_->b_dtype == DType::kBF16) {
    thread_local std::vector<BFloat16> narrow_row;
    narrow_row.resize(static_cast<size_t>(kernel_->padded_k(d_model_)));
    unpack(column, reinterpret_cast<std::byte*>(narrow_row.data()));
    primitives::widen(narrow_row.data(), d_model_, scratch);
  } else {
    unpack(column, reinterpret_cast<std::byte*>(scratch));
  }
  if (const int exponent = (*this)[column].exponent; exponent != 0)
    for (int64_t k = 0; k < d_model_; ++k) scratch[k] = std::ldexp(scratch[k], exponent);
  return scratch;
}

uint64_t Columns::hash_of(int64_t column) {
  if (column == hashed_column_) return hash_;
  std::vector<float> scratch(static_cast<size_t>(d_model_));
  const float* row = exact(column, scratch.data());
  hash_ = 0;
  for (int64_t k = 0; k < d_model_; k += 2) {
    uint64_t two = 0;
    std::memcpy(&two, row + k, k + 1 < d_model_ ? 8 : 4);
    hash_ = (hash_ ^ two) * 0x9e3779b97f4a7c15u;
    hash_ ^= hash_ >> 32;
  }
  hashed_column_ = column;
  return hash_;
}

void Columns::count_in_once(size_t mask, int64_t column) {
  const auto [known, is_new] = firsts_.try_emplace(hash_of(column) + mask, column);
  const int64_t first = known->second;
  if (!is_new && (*this)[first].position < (*this)[column].position && counts(mask, first)) {
    std::vector<float> scratch(static_cast<size_t>(2 * d_model_));
    const float* a = exact(first, scratch.data());
    const float* b = exact(column, scratch.data() + d_model_);
    if (std::memcmp(a, b, static_cast<size_t>(d_model_) * sizeof(float)) == 0) return;
  }
  count_in(mask, column);
}

int64_t Columns::bytes() const {
  const int64_t packed = kernel_->padded_k(d_model_) * element_bytes(kernel_->b_dtype);
  const int64_t exact_row = exact_rows_.empty() ? 0 : d_model_ * element_bytes(DType::kF32);
  return size() * (packed + exact_row);
}

}  // namespace sluice::impl::cpu::selection
