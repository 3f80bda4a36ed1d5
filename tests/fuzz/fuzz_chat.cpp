// A chat template: whether a format is recognised, and the text that messages become.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "io/chat/chat_style.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto style = sluice::impl::recognise_chat(text, {.bos = "<s>", .eos = "</s>"});
  if (style && style->user.open.empty() && style->user.close.empty() && style->ask.empty())
    __builtin_trap();  // messages would not be told apart
  return 0;
}
