// The decoding of one growing list of ids: what a Tokenizer hands to a StreamDecoder.

#pragma once

#include <cstdint>
#include <string>

namespace sluice::impl {

class DecodeStream {
 public:
  virtual ~DecodeStream() = default;
  virtual std::string push(int32_t id) = 0;
  virtual std::string finish() = 0;
};

}  // namespace sluice::impl
