#include "io/tokenizer/growth.h"

#include <fmt/format.h>

#include "core/error.h"

namespace sluice::impl::tok {

void check_growth(size_t n_bytes, size_t most) {
  if (n_bytes > most)
    throw Error(fmt::format("the tokenizer makes {} bytes of a text, more than the {} it may have",
                            n_bytes, most),
                "is the tokenizer from a source you trust?");
}

}  // namespace sluice::impl::tok
