// Gated subspace and graded linear layers on the device. docs/algorithm.md, section 4.

#pragma once

#include <optional>

#include "backend/cuda/linear/linear.h"

namespace sluice::impl::cuda::subspace {

// E = V^T V - 1, what directions V as they are kept are short of orthonormal; in bf16 alone.
struct Deviation {
  DeviceArray<float> diagonal;    // (rank)
  linear::DeviceMatrix overlaps;  // (rank, rank) twice what is below the diagonal, zeros elsewhere
  double norm = 0;                // no less than that of the off-diagonal part of E
  double rounding = 0;            // the same of what `overlaps` are off
};

struct DeviceBasis final : SubspaceBasis {
  DeviceBasis(linear::DeviceMatrix by_vectors, linear::DeviceMatrix by_columns)
      : SubspaceBasis(by_vectors.rows.rows(), by_vectors.rows.row_elements(),
                      by_vectors.rows.shape().numel() * element_bytes(by_vectors.rows.dtype())),
        vectors(std::move(by_vectors)),
        columns(std::move(by_columns)) {}
  // Gates alone need it: it is made for the first one. Waits for it then.
  const Deviation& deviation(const std::shared_ptr<Context>& context,
                             linear::Multiplier& multiplier) const;

  linear::DeviceMatrix vectors;  // (rank, n_in)
  linear::DeviceMatrix columns;  // (n_in, rank): the same transposed, to go back from coordinates

 private:
  mutable std::optional<Deviation> deviation_;
};

struct DeviceColumns final : ColumnWeights {
  DeviceColumns(linear::DeviceMatrix by_columns, linear::DeviceBias its_bias);
  linear::DeviceMatrix columns;  // (n_in, n_out)
  linear::DeviceBias bias;
};

std::unique_ptr<DeviceBasis> make_basis(const std::shared_ptr<Context>& context,
                                        std::span<const float> vectors, int64_t rank, int64_t n_in,
                                        DType dtype);
std::unique_ptr<DeviceColumns> pack_columns(const std::shared_ptr<Context>& context,
                                            const MatrixSource& source, DType dtype);
std::unique_ptr<linear::DeviceWeights> pack_image(const std::shared_ptr<Context>& context,
                                                  linear::Multiplier& multiplier,
                                                  const MatrixSource& source,
                                                  const DeviceBasis& basis, DType dtype);

// nullptr where the host must decide.
std::unique_ptr<RowGate> make_gate(const std::shared_ptr<Context>& context,
                                   linear::Multiplier& multiplier, const GateSpec& spec);

void project(const std::shared_ptr<Context>& context, linear::Multiplier& multiplier,
             const ProjectArgs& args);
void grade(const std::shared_ptr<Context>& context, const GradeArgs& args);
void linear_columns(const std::shared_ptr<Context>& context, const LinearColumnsArgs& args);

}  // namespace sluice::impl::cuda::subspace
