// Puts special tokens around the ids of a text: <s> …, [CLS] … [SEP].

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace sluice::impl {
class JsonValue;
}

namespace sluice::impl::tok {

class PostProcessor {
 public:
  PostProcessor() = default;  // adds nothing
  // One template around the text: what stands before and after it.
  PostProcessor(std::vector<int32_t> before, std::vector<int32_t> after);
  static PostProcessor read(const JsonValue& json);

  std::vector<int32_t> apply(const std::vector<int32_t>& ids) const;
  bool starts_with(int32_t id) const;
  bool ends_with(int32_t id) const;
  void put_first(int32_t id) { before_.insert(before_.begin(), id); }
  void put_last(int32_t id) { after_.push_back(id); }

 private:
  std::vector<int32_t> before_;
  std::vector<int32_t> after_;
};

}  // namespace sluice::impl::tok
