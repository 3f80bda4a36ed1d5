// The reference backend: docs/algorithm.md as plain loops. Sums are float64 in index order, and
// results are rounded once, to the dtype of the output. Never optimised.

#pragma once

#include "backend/backend.h"

namespace sluice::reference {

// Element (row, column) of a tensor, its inner axes taken as one.
float load(const ConstTensor& x, int64_t row, int64_t column);
void store(const Tensor& x, int64_t row, int64_t column, float value);

float activate(Activation activation, float x);

struct Weights final : LinearWeights {
  Weights(const MatrixSource& source, DType dtype);
  Buffer rows;              // (n_out, n_in) compute dtype
  std::vector<float> bias;  // (n_out), or empty
};

struct Rows final : Table {
  explicit Rows(MatrixSource matrix) : source(std::move(matrix)) {}
  MatrixSource source;
};

void embed(const EmbedArgs& args);
void norm(const NormArgs& args);
void linear(const LinearArgs& args);
void rotate(const RotaryArgs& args);
void store_kv(const StoreKvArgs& args);
void attend_dense(const AttendDenseArgs& args);
void gate(const GateArgs& args);
void convert(ConstTensor from, Tensor to);
void gather_rows(ConstTensor from, std::span<const int32_t> rows, Tensor to);
void add_rows(ConstTensor from, std::span<const int32_t> rows, Tensor to);

std::unique_ptr<Selector> make_selector(const SelectorSpec& spec);
std::unique_ptr<KeysAttention> make_keys_attention(const KeysSpec& spec);
std::unique_ptr<RepsAttention> make_reps_attention(const RepsSpec& spec);

}  // namespace sluice::reference
