// A list of short texts in one piece of memory: 4 bytes each and their characters.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::impl::tok {

class PackedTexts {
 public:
  void add(std::string_view text) {
    bytes_ += text;
    ends_.push_back(static_cast<uint32_t>(bytes_.size()));  // files are shorter than 4 GiB
  }
  size_t size() const { return ends_.size(); }
  std::string_view operator[](size_t i) const {
    const size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(bytes_).substr(begin, ends_[i] - begin);
  }
  // Bytes in use. What a vector has beyond them was never touched.
  size_t memory() const { return bytes_.size() + ends_.size() * sizeof(uint32_t); }

 private:
  std::string bytes_;
  std::vector<uint32_t> ends_;
};

}  // namespace sluice::impl::tok
