#include "io/tokenizer/regex.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "core/error.h"
#include "core/quote.h"
#include "io/tokenizer/regex_syntax.h"
#include "io/tokenizer/utf8.h"

namespace sluice::impl::tok {

namespace {

using Clock = std::chrono::steady_clock;

// Backtracking steps at one start position; real patterns take fewer than a hundred.
constexpr uint32_t kMatchLimit = 5'000'000;
constexpr uint32_t kHeapLimitKib = 256 * 1024;
// Reserved, and used only where a pattern repeats a group many thousand times.
constexpr size_t kJitStackBytes = size_t{128} << 20;
// PCRE2 counts steps anew at every start position, so a search looks at a few at a time and the
// clock is read in between. After a fast search the next one looks at twice as many.
constexpr size_t kFewestStarts = 16, kMostStarts = 4096;
constexpr std::chrono::milliseconds kFastSearch{10};
// Per text; 1 MB of English takes 0.1 s.
constexpr std::chrono::nanoseconds kTimeLimit = std::chrono::seconds(2);
constexpr std::chrono::nanoseconds kTimeLimitPerByte = std::chrono::microseconds(20);

template <auto Free>
struct Freer {
  template <typename T>
  void operator()(T* p) const {
    Free(p);
  }
};
using CodePtr = std::unique_ptr<pcre2_code, Freer<pcre2_code_free>>;
using CompilePtr = std::unique_ptr<pcre2_compile_context, Freer<pcre2_compile_context_free>>;
using MatchPtr = std::unique_ptr<pcre2_match_context, Freer<pcre2_match_context_free>>;
using DataPtr = std::unique_ptr<pcre2_match_data, Freer<pcre2_match_data_free>>;
using StackPtr = std::unique_ptr<pcre2_jit_stack, Freer<pcre2_jit_stack_free>>;

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 128> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// One pass over one text: the match data and limits that must not be shared between threads.
class Search {
 public:
  Search(const pcre2_code* code, bool jit, std::string_view text, const std::string& where)
      : code_(code),
        jit_(jit),
        text_(text),
        where_(where),
        data_(pcre2_match_data_create(1, nullptr)),
        context_(pcre2_match_context_create(nullptr)),
        begun_(Clock::now()),
        deadline_(begun_ + kTimeLimit + static_cast<int64_t>(text.size()) * kTimeLimitPerByte) {
    SLUICE_CHECK(data_ && context_);
    pcre2_set_match_limit(context_.get(), kMatchLimit);
    pcre2_set_heap_limit(context_.get(), kHeapLimitKib);
  }

  std::optional<Span> next(size_t from) {
    for (size_t start = from; start <= text_.size();) {
      const size_t last = std::min(start + n_starts_, text_.size());
      pcre2_set_offset_limit(context_.get(), last);
      const int rc = match(start);
      if (rc >= 0) {
        if (++n_found_ % 1024 == 0) check_clock();
        const PCRE2_SIZE* ovector = pcre2_get_ovector_pointer(data_.get());
        return Span{ovector[0], ovector[1]};
      }
      if (rc != PCRE2_ERROR_NOMATCH) fail(message_of(rc));
      check_clock();
      start = next_boundary(last + 1);
    }
    return std::nullopt;
  }

 private:
  int match(size_t start) {
    const auto run = [&](uint32_t options) {
      return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text_.data()), text_.size(), start,
                         PCRE2_NO_UTF_CHECK | options, data_.get(), context_.get());
    };
    int rc = run(0);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && jit_) {
      if (!stack_) {
        stack_.reset(pcre2_jit_stack_create(64 * 1024, kJitStackBytes, nullptr));
        pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
        rc = run(0);
      }
      if (rc == PCRE2_ERROR_JIT_STACKLIMIT) rc = run(PCRE2_NO_JIT);
    }
    return rc;
  }

  size_t next_boundary(size_t at) const {
    while (at < text_.size() && (static_cast<unsigned char>(text_[at]) & 0xC0) == 0x80) ++at;
    return at;
  }
  void check_clock() {
    const Clock::time_point now = Clock::now();
    if (now > deadline_) fail("it takes too long on this text");
    n_starts_ = now - begun_ < kFastSearch ? std::min(2 * n_starts_, kMostStarts) : kFewestStarts;
    begun_ = now;
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(fmt::format("{}: the pattern could not be matched: {}", where_, what),
                "is the tokenizer from a source you trust?");
  }

  const pcre2_code* code_;
  bool jit_;
  std::string_view text_;
  const std::string& where_;
  DataPtr data_;
  MatchPtr context_;
  StackPtr stack_;
  Clock::time_point begun_;  // the searches since the clock was read
  Clock::time_point deadline_;
  size_t n_starts_ = kFewestStarts;
  size_t n_found_ = 0;
};

}  // namespace

struct Regex::Code {
  CodePtr code;
  bool jit = false;
};

Regex::Regex(std::string_view pattern, std::string where)
    : code_(std::make_unique<Code>()), where_(std::move(where)) {
  constexpr size_t kMaxPattern = 1 << 16;
  if (pattern.size() > kMaxPattern)
    throw Error(where_ + ": the pattern is longer than 64 KiB", "is the file damaged?");
  const std::string translated = oniguruma_to_pcre2(pattern, where_);
  const CompilePtr context(pcre2_compile_context_create(nullptr));
  SLUICE_CHECK(context != nullptr);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  // MULTILINE: in Oniguruma ^ and $ always mean the edges of a line.
  code_->code.reset(pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT,
      &error, &offset, context.get()));
  if (!code_->code) {
    throw Error(fmt::format("{}: the pattern {} does not compile: {}", where_, quote(pattern),
                            message_of(error)),
                "patterns are in Oniguruma's syntax");
  }
  code_->jit = pcre2_jit_compile(code_->code.get(), PCRE2_JIT_COMPLETE) == 0;
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

std::vector<Span> Regex::find_all(std::string_view text) const {
  std::vector<Span> found;
  Search search(code_->code.get(), code_->jit, text, where_);
  size_t from = 0;
  while (from <= text.size()) {
    const std::optional<Span> match = search.next(from);
    if (!match) break;
    const bool empty = match->begin == match->end;
    if (empty && !found.empty() && found.back().end == match->end) {
      from += from < text.size() ? decode_char(text, from).n_bytes : 1;
      continue;
    }
    found.push_back(*match);
    from = match->end;
  }
  return found;
}

}  // namespace sluice::impl::tok
