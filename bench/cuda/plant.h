// Rows of planted redundancy, made on the device: as bench/attention_layer.cpp plants them.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/cuda/runtime/device.h"
#include "backend/select_basis.h"
#include "core/tensor.h"

namespace sluice::impl::bench {

constexpr double kPlantedTau = 0.5;

// Which representative a token goes to: any earlier one, or mostly the first few, as the spaces and
// line breaks of a text do.
enum class Spread { kEven, kSkewed };

// Rows whose structure lies within a basis, plus noise of `rest` of its norm in all dimensions.
struct Near {
  std::shared_ptr<const SelectionBasis> basis = nullptr;  // none: in all dimensions
  float rest = 0;
};
std::shared_ptr<const SelectionBasis> random_basis(int64_t rank, int64_t d);

// Fills rows (n_tokens, d) bf16: n_reps representatives at even distances, every other token around
// an earlier one, at cosines from 0.995 down to 0.76. Returns the set that a layer before might
// have had: a fortieth of the representatives is missing, as many others stand in it.
std::vector<uint8_t> plant_rows(cuda::Context& context, const Tensor& rows, int64_t n_reps,
                                Spread spread, const Near& near = {});
void fill_normal(cuda::Context& context, const Tensor& rows, uint32_t seed);

}  // namespace sluice::impl::bench
