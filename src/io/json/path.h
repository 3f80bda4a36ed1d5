// A place inside a JSON file as messages name it: "layers[3].heads[1].tau".

#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sluice::impl {

class JsonPath {
 public:
  // Keys come from files: odd ones are quoted, long ones are cut.
  void add_key(std::string_view key);
  void add_index(size_t index);
  // "LABEL: path"; the label alone at the top. Of a long path the end is shown.
  std::string in(const std::string& label) const;

 private:
  std::string text_;
};

}  // namespace sluice::impl
