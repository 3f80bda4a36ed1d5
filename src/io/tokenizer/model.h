// Encodes one pre-tokenized word as token ids. Each kind of model has a file of its own.

#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "io/tokenizer/vocab.h"

namespace sluice::impl {
class JsonValue;
}

namespace sluice::impl::tok {
class ModelLists;
}

namespace sluice::impl::tok {

class Model {
 public:
  virtual ~Model() = default;
  // Appends the ids of `word`: valid UTF-8, not empty. Safe to call from several threads.
  virtual void tokenize(std::string_view word, std::vector<int32_t>& ids) const = 0;
  // True when `word` may be cut before a U+2581 that follows another character, and the parts
  // tokenized one by one: long texts without pre-tokenization then stay cheap.
  virtual bool can_cut_at_metaspace() const { return false; }
  virtual const Vocab& vocab() const = 0;
  virtual std::string_view kind() const = 0;
};

// Reads the "model" part of a tokenizer.json. byte_level: whether the words reaching the model
// are spelled in the byte alphabet; it only chooses the name of the kind. The lists are emptied as
// they are used.
std::unique_ptr<Model> make_model(const JsonValue& json, ModelLists& lists, bool byte_level);

}  // namespace sluice::impl::tok
