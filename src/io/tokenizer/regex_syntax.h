// Tokenizer files hold Oniguruma patterns; the program runs PCRE2. This rewrites the few
// constructs that the two read differently and refuses those it cannot express.

#pragma once

#include <string>
#include <string_view>

namespace sluice::impl::tok {

// `where` names file and key in the Error of a refused pattern.
std::string oniguruma_to_pcre2(std::string_view pattern, const std::string& where);
// The pattern that matches exactly this text.
std::string escape_regex(std::string_view text);

}  // namespace sluice::impl::tok
