// Activation bases: orthonormal directions that the inputs of a layer lie near.
// docs/algorithm.md, sections 4 and 5.

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::impl {

// The rows that a basis is made of. The first four are what linear layers read; the other two are
// unit rows of the tokens that selection compares, exempt tokens left out.
//
// In a parallel block (GPT-J) attention and MLP read the same rows: those are kAttentionInput, and
// there is no basis of kMlpInput.
enum class BasisInput : uint8_t {
  kAttentionInput,   // of q, k and v
  kAttentionOutput,  // of the output projection: heads side by side
  kMlpInput,         // of gate and up
  kMlpInner,         // of the MLP's output matrix
  kSelectionNormed,
  kSelectionResidual,
};
inline constexpr std::array kBasisInputs = {
    BasisInput::kAttentionInput, BasisInput::kAttentionOutput, BasisInput::kMlpInput,
    BasisInput::kMlpInner,       BasisInput::kSelectionNormed, BasisInput::kSelectionResidual};

// "attention_input", …: the same in files, flags and results.
std::string_view basis_input_name(BasisInput input);
std::optional<BasisInput> basis_input_of(std::string_view name);

// How wide the rows of a model are.
struct RowWidths {
  int64_t d_model = 0, attention = 0, inner = 0;  // attention: n_heads * head_dim
  int64_t of(BasisInput input) const;
};

struct Basis {
  int64_t layer = 0;
  BasisInput input = BasisInput::kAttentionInput;
  int64_t d = 0, rank = 0;
  std::vector<float> vectors;    // (rank, d): orthonormal rows, most energy first
  std::vector<double> spectrum;  // share of all energy along each direction, descending: the first
                                 // `rank` or more, all d after a fresh decomposition

  // Share of the energy that the first k directions capture; k up to spectrum.size().
  double energy(int64_t k) const;
  double energy() const { return energy(rank); }

  template <typename Archive>
  void transfer(Archive& archive) {
    archive(layer, input, d, rank, vectors, spectrum);
  }
};

// How many directions capture `share` of the energy; nothing where the spectrum ends before.
std::optional<int64_t> effective_rank(const std::vector<double>& spectrum, double share);

// What a sidecar file holds.
struct Bases {
  std::string model_sha256;
  std::string text_path, text_sha256;  // that they were calibrated on
  int64_t n_tokens = 0;                // of it
  std::vector<Basis> list;

  const Basis* find(int64_t layer, BasisInput input) const;  // nullptr when absent
};

}  // namespace sluice::impl
