#include "eval/text/masked_windows.h"

#include <fmt/format.h>

#include "core/error.h"

namespace sluice::impl {
namespace {

// The checkpoint's own, or the one that tokenizers of BERT or ESM-2 have.
int32_t mask_of(const Model& model, const Tokenizer& tokenizer) {
  if (model.spec().mask_id >= 0) return model.spec().mask_id;
  for (const char* name : {"[MASK]", "<mask>"})
    if (const auto id = tokenizer.id_of(name)) return *id;
  throw Error("the tokenizer has no mask token, nothing can be hidden from the encoder",
              "a vocabulary with [MASK] or <mask>");
}

// A draw from [0, 1), the same with every standard library.
double uniform(std::mt19937_64& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

}  // namespace

std::vector<int32_t> MaskTemplate::enclosed(std::span<const int32_t> window) const {
  const auto half = static_cast<ptrdiff_t>((tokens.size() + 1) / 2);
  std::vector<int32_t> out(tokens.begin(), tokens.begin() + half);
  out.insert(out.end(), window.begin(), window.end());
  out.insert(out.end(), tokens.begin() + half, tokens.end());
  return out;
}

MaskTemplate mask_template(const Model& model, const Tokenizer& tokenizer, int64_t context) {
  MaskTemplate out{tokenizer.encode("", /*add_special=*/true), mask_of(model, tokenizer)};
  if (!model.has_head())
    throw Error("the checkpoint has no head, nothing can be predicted",
                "a checkpoint saved for masked language modelling");
  if (context <= std::ssize(out.tokens))
    throw Error(fmt::format("a context of {} has no room for text", context), "a larger --context");
  return out;
}

MaskedWindows::MaskedWindows(const Model& model, TextStream& text, MaskOptions options,
                             int64_t max_windows)
    : text_(text),
      options_(options),
      context_(model.context()),
      max_windows_(max_windows),
      template_(mask_template(model, text.tokenizer(), model.context())),
      random_(options.seed) {
  if (!(options.share > 0 && options.share < 1))
    throw Error(fmt::format("a share of {} of the tokens cannot be masked", options.share),
                "more than 0 and less than 1");
}

bool MaskedWindows::next() {
  if (max_windows_ > 0 && n_windows_ == max_windows_) return false;
  do {
    std::vector<int32_t> window;
    if (text_.read(context_ - std::ssize(template_.tokens), window) == 0) {
      if (n_windows_ > 0) return false;
      throw Error("the text has no token that could be masked",
                  "-f takes a text file with at least a few sentences");
    }
    tokens_ = template_.enclosed(window);
    mask();
  } while (places_.empty());  // nothing but special tokens
  ++n_windows_;
  return true;
}

void MaskedWindows::mask() {
  places_.clear();
  truth_.clear();
  std::vector<int32_t> plain;  // places of tokens that are not special
  for (size_t i = 0; i < tokens_.size(); ++i)
    if (!text_.tokenizer().is_special(tokens_[i])) plain.push_back(static_cast<int32_t>(i));
  for (const int32_t place : plain)
    if (uniform(random_) < options_.share) places_.push_back(place);
  // One token alone is not hidden: a window of masks says nothing.
  if (places_.size() == plain.size()) places_.resize(plain.empty() ? 0 : plain.size() - 1);
  if (places_.empty() && plain.size() > 1) places_.push_back(plain[random_() % plain.size()]);
  for (const int32_t place : places_) {
    truth_.push_back(tokens_[static_cast<size_t>(place)]);
    tokens_[static_cast<size_t>(place)] = template_.mask_id;
  }
}

}  // namespace sluice::impl
