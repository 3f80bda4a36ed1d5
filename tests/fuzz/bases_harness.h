// What a fuzzer does with one bases.safetensors.

#pragma once

#include "fuzz/harness.h"
#include "subspace/sidecar.h"

namespace sluice::impl::fuzz {

// What is accepted is an orthonormal basis of the widths it was asked for.
inline void feed_bases(std::span<const std::byte> bytes) {
  const BasesModel model{
      .sha256 = "abc", .n_layers = 2, .widths = {.d_model = 4, .attention = 4, .inner = 6}};
  expect_only_errors([&] {
    for (const Basis& basis : parse_bases(bytes, "input", model).list) {
      const bool sound = basis.layer >= 0 && basis.layer < model.n_layers &&
                         basis.d == model.widths.of(basis.input) && basis.rank >= 1 &&
                         basis.rank <= basis.d && std::ssize(basis.vectors) == basis.rank * basis.d;
      if (!sound) throw std::logic_error("a basis is not what was asked for");
    }
  });
}

}  // namespace sluice::impl::fuzz
