#include "io/tokenizer/decode_stream.h"
#include "io/tokenizer/tokenizer.h"

namespace sluice::impl {

namespace {

// For a tokenizer without streams of its own: says everything at the end.
class HoldAll : public DecodeStream {
 public:
  HoldAll(const Tokenizer& tokenizer, bool skip_special)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}
  std::string push(int32_t id) override {
    ids_.push_back(id);
    return {};
  }
  std::string finish() override {
    std::string text = tokenizer_.decode(ids_, skip_special_);
    ids_.clear();
    return text;
  }

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::vector<int32_t> ids_;
};

}  // namespace

std::unique_ptr<DecodeStream> Tokenizer::open_stream(bool skip_special) const {
  return std::make_unique<HoldAll>(*this, skip_special);
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : stream_(tokenizer.open_stream(skip_special)) {}
StreamDecoder::~StreamDecoder() = default;
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
StreamDecoder& StreamDecoder::operator=(StreamDecoder&&) noexcept = default;

std::string StreamDecoder::push(int32_t id) { return stream_->push(id); }

std::string StreamDecoder::finish() { return stream_->finish(); }

}  // namespace sluice::impl
