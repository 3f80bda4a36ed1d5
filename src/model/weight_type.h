// The types that a model's matrices may have in memory: as they are stored, expanded, or blocks
// that are made while loading.

#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "backend/core_ops.h"

namespace sluice::impl {

inline constexpr std::array kWeightTypes = {DType::kF32,  DType::kBF16, DType::kQ8_0, DType::kQ4_0,
                                            DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ4_K,
                                            DType::kQ5_K, DType::kQ6_K};

std::optional<DType> weight_type_named(std::string_view name);

// What a matrix of n_in columns gets where `wanted` is asked for: that, or q8_0 where its rows are
// no whole number of blocks, or kF32 for the compute dtype where they are none of q8_0's either.
DType fitting_weight_type(DType wanted, int64_t n_in);

// What a model's matrices are asked to be.
struct WeightType {
  std::optional<DType> type = {};
  bool expanded = false;  // the values of the blocks, in the compute dtype: to compare with
};

// The same matrix in blocks of the type that fits, its rows those of the blocks; with f32 or bf16,
// or `expanded`, without stored rows, so that a backend expands it; without a type, as it is.
MatrixSource with_weight_type(MatrixSource source, const WeightType& wanted);

}  // namespace sluice::impl
