// Gated subspace and graded linear layers on the device. docs/algorithm.md, section 4.

#pragma once

#include "backend/cuda/linear.h"

namespace sluice::cuda {

struct DeviceBasis final : SubspaceBasis {
  DeviceBasis(DeviceMatrix by_vectors, DeviceMatrix by_columns)
      : SubspaceBasis(by_vectors.rows.rows(), by_vectors.rows.row_elements(),
                      by_vectors.rows.shape().numel() * element_bytes(by_vectors.rows.dtype())),
        vectors(std::move(by_vectors)),
        columns(std::move(by_columns)) {}
  DeviceMatrix vectors;  // (rank, n_in)
  DeviceMatrix columns;  // (n_in, rank): the same transposed, to go back from coordinates
};

struct DeviceColumns final : ColumnWeights {
  DeviceColumns(DeviceMatrix by_columns, DeviceBias its_bias);
  DeviceMatrix columns;  // (n_in, n_out)
  DeviceBias bias;
};

std::unique_ptr<DeviceBasis> make_basis(const std::shared_ptr<Context>& context,
                                        std::span<const float> vectors, int64_t rank, int64_t n_in,
                                        DType dtype);
std::unique_ptr<DeviceColumns> pack_columns(const std::shared_ptr<Context>& context,
                                            const MatrixSource& source, DType dtype);
std::unique_ptr<DeviceWeights> pack_image(const std::shared_ptr<Context>& context,
                                          Multiplier& multiplier, const MatrixSource& source,
                                          const DeviceBasis& basis, DType dtype);

void project(const std::shared_ptr<Context>& context, Multiplier& multiplier,
             const ProjectArgs& args);
void grade(const std::shared_ptr<Context>& context, const GradeArgs& args);
void linear_columns(const std::shared_ptr<Context>& context, const LinearColumnsArgs& args);

}  // namespace sluice::cuda
