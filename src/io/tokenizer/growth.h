// How long a text may become. Steps that multiply a text, a few in a row, would fill the memory.

#pragma once

#include <cstddef>

namespace sluice::impl::tok {

// By the steps of a normalizer or a pre-tokenizer together. NFKD alone makes 33 bytes of 3.
constexpr size_t most_bytes_of(size_t n_bytes) { return 16 * n_bytes + 256; }

// By a step of a decoder, whose texts are tokens.
inline constexpr size_t kMostDecodedBytes = size_t{64} << 10;

// Throws Error where `n_bytes` is more than `most`.
void check_growth(size_t n_bytes, size_t most);

}  // namespace sluice::impl::tok
