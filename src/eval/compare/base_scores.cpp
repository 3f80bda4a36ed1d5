#include "eval/compare/base_scores.h"

#include <algorithm>

#include "core/error.h"
#include "core/threads.h"
#include "eval/text/windows.h"

namespace sluice::impl {
namespace {

Buffer buffer_of(const Model& model, int64_t n_rows) {
  return model.backend().allocate(DType::kF32, {n_rows, model.spec().vocab});
}

std::span<const float> row_of(const Tensor& of, int64_t row) {
  return {of.row<float>(row), static_cast<size_t>(of.row_elements())};
}

}  // namespace

BaseScores::BaseScores(Model& model, int64_t n_rows)
    : model_(model),
      on_host_(model.backend().score_comparer() == nullptr),
      base_(buffer_of(model, n_rows)),
      scores_(buffer_of(model, std::min(n_rows, kScoreRows))),
      rows_(static_cast<size_t>(on_host_ ? n_rows : 0)),
      found_(static_cast<size_t>(kScoreRows)) {}

void BaseScores::set(int64_t first, const ConstTensor& hidden) {
  const Tensor base = base_.view().rows_from(first, hidden.rows());
  model_.logits(hidden, base);
  if (!on_host_) return;
  parallel_for(hidden.rows(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      rows_[static_cast<size_t>(first + row)].set(row_of(base, row));
  });
}

std::span<const TokenComparison> BaseScores::compare(int64_t first, const ConstTensor& hidden,
                                                     std::span<const int32_t> next) {
  const int64_t n = hidden.rows();
  SLUICE_CHECK(std::ssize(next) == n);
  const Tensor scores = scores_.view().rows_from(0, n);
  const std::span<TokenComparison> found = std::span(found_).first(next.size());
  model_.logits(hidden, scores);
  if (!on_host_) {
    model_.backend().score_comparer()->compare_scores(
        {.base = base_.view().rows_from(first, n), .scores = scores, .next = next, .out = found});
    return found;
  }
  parallel_for(n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const auto i = static_cast<size_t>(row);
      found[i] = rows_[static_cast<size_t>(first + row)].against(row_of(scores, row), next[i]);
    }
  });
  return found;
}

}  // namespace sluice::impl
