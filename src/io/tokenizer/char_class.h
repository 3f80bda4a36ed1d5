// Classes of Unicode characters, as the parts of a tokenizer mean them. Tables: utf8proc.

#pragma once

#include <string>

namespace sluice::impl::tok {

bool is_whitespace(char32_t c);   // Unicode White_Space
bool is_punctuation(char32_t c);  // general category P, and ASCII symbols
bool is_numeric(char32_t c);      // general category N
bool is_mark(char32_t c);         // general category M
bool is_nonspacing_mark(char32_t c);
bool is_word(char32_t c);           // letters, marks, digits, connectors, joiners
bool is_cjk_ideograph(char32_t c);  // the blocks BERT puts spaces around
bool is_bert_control(char32_t c);   // what BERT's clean_text removes

// Appends the lower case of c: two characters for U+0130, one for all others.
void append_lower(std::string& out, char32_t c);

}  // namespace sluice::impl::tok
