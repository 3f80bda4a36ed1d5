// A compiled regular expression over valid UTF-8 text, run by PCRE2 with limits so that a hostile
// pattern ends in an Error instead of hanging. Safe to use from several threads at once.

#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::impl::tok {

struct Span {
  size_t begin, end;  // bytes
};

class Regex {
 public:
  // `pattern` is in Oniguruma's syntax; `where` names file and key in messages.
  Regex(std::string_view pattern, std::string where);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Every match from left to right, none overlapping. An empty match right after another match
  // is left out.
  std::vector<Span> find_all(std::string_view text) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
  std::string where_;
};

}  // namespace sluice::impl::tok
