// A golden GGUF file with edits to its metadata and to its list of tensors.

#include "fuzz/model_harness.h"
#include "fuzz/tokenizer_harness.h"

namespace {

using namespace sluice::impl;

struct Pair {
  std::string key;
  uint32_t type = 0;
  std::string value;  // as it lies in the file
};

struct Source {
  std::vector<Pair> pairs;
  std::vector<test::GgufTensor> tensors;
};

size_t width_of(uint32_t type) {
  constexpr std::array<size_t, 13> kWidths = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return kWidths.at(type);
}

// Reads what tools/ has written, which is sound.
class Walk {
 public:
  explicit Walk(const std::string& file) : file_(file) {}
  std::string raw(size_t count) {
    at_ += count;
    return file_.substr(at_ - count, count);
  }
  template <typename T>
  T number() {
    T value{};
    std::memcpy(&value, file_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  std::string string() { return raw(number<uint64_t>()); }
  std::string value(uint32_t type) {
    const size_t begin = at_;
    if (type == test::kGgufString) {
      string();
    } else if (type == test::kGgufArray) {
      const auto inner = number<uint32_t>();
      const auto count = number<uint64_t>();
      for (uint64_t i = 0; i < count; ++i) value(inner);
    } else {
      at_ += width_of(type);
    }
    return file_.substr(begin, at_ - begin);
  }
  size_t at() const { return at_; }

 private:
  const std::string& file_;
  size_t at_ = 0;
};

Source read_source(const fuzz::fs::path& path) {
  const std::string file = test::read_bytes(path);
  Walk walk(file);
  Source source;
  walk.raw(8);
  const auto n_tensors = walk.number<uint64_t>();
  const auto n_pairs = walk.number<uint64_t>();
  for (uint64_t i = 0; i < n_pairs; ++i) {
    Pair pair{walk.string(), walk.number<uint32_t>(), {}};
    pair.value = walk.value(pair.type);
    source.pairs.push_back(std::move(pair));
  }
  for (uint64_t i = 0; i < n_tensors; ++i) {
    test::GgufTensor tensor{walk.string(), {}, 0, {}, {}};
    const auto rank = walk.number<uint32_t>();
    for (uint32_t axis = 0; axis < rank; ++axis) tensor.extents.push_back(walk.number<uint64_t>());
    tensor.type = walk.number<uint32_t>();
    tensor.offset = walk.number<uint64_t>();
    source.tensors.push_back(std::move(tensor));
  }
  const size_t data = (walk.at() + 31) / 32 * 32;
  for (size_t i = 0; i < source.tensors.size(); ++i) {
    test::GgufTensor& tensor = source.tensors[i];
    const size_t end =
        i + 1 < source.tensors.size() ? data + *source.tensors[i + 1].offset : file.size();
    tensor.data = file.substr(data + *tensor.offset, end - data - *tensor.offset);
    tensor.offset.reset();
  }
  return source;
}

const std::vector<Source>& sources() {
  static const std::vector<Source> all = [] {
    std::vector<Source> list;
    for (const auto& path : fuzz::golden_files("gguf", ".gguf")) list.push_back(read_source(path));
    for (const auto& folder : fuzz::golden_files("tokenizers", ""))
      if (exists(folder / "tokenizer.gguf")) list.push_back(read_source(folder / "tokenizer.gguf"));
    return list;
  }();
  return all;
}

void edit_pair(std::vector<Pair>& pairs, fuzz::Script& script) {
  if (pairs.empty()) return;
  const size_t i = script.below(pairs.size());
  Pair& pair = pairs[i];
  switch (script.below(8)) {
    case 0:
      pairs.erase(pairs.begin() + static_cast<int64_t>(i));
      break;
    case 1:
      pair.key = pairs[script.below(pairs.size())].key;
      break;
    case 2:
      pair.type = static_cast<uint32_t>(script.below(14));
      break;
    case 3:
      pair.value = pairs[script.below(pairs.size())].value;
      break;
    case 4:
      pair.type = test::kGgufString;
      pair.value = test::gguf_string(script.text());
      break;
    case 5:
      pair.type = test::kGgufF32;
      pair.value = test::pack(static_cast<float>(script.number()));
      break;
    default:
      if (pair.type == test::kGgufArray && pair.value.size() >= 12 && script.below(4) != 0) {
        // An element of it, or its count.
        const size_t at = 4 + script.below(pair.value.size() - 4);
        pair.value[at] = static_cast<char>(pair.value[at] ^ script.take<char>());
        break;
      }
      pair.type = test::kGgufI64;
      pair.value = test::pack(script.integer());
  }
}

void edit_tensor(std::vector<test::GgufTensor>& tensors, fuzz::Script& script) {
  if (tensors.empty()) return;
  const size_t i = script.below(tensors.size());
  test::GgufTensor& tensor = tensors[i];
  switch (script.below(8)) {
    case 0:
      tensors.erase(tensors.begin() + static_cast<int64_t>(i));
      break;
    case 1:
      tensor.name = tensors[script.below(tensors.size())].name;
      break;
    case 2:
      tensor.type = static_cast<uint32_t>(script.below(32));
      break;
    case 3:
      tensor.offset = static_cast<uint64_t>(script.integer());
      break;
    case 4:
      tensor.extents.push_back(static_cast<uint64_t>(script.integer()));
      break;
    case 5:
      std::reverse(tensor.extents.begin(), tensor.extents.end());
      break;
    case 6:
      tensor.data.resize(script.below(8192));
      break;
    default:
      if (!tensor.extents.empty())
        tensor.extents[script.below(tensor.extents.size())] =
            static_cast<uint64_t>(script.integer());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const test::TempDir folder;
  fuzz::Script script(std::as_bytes(std::span(data, size)));
  Source source = sources()[script.below(sources().size())];
  for (int i = 0; i < 8 && !script.ended(); ++i) {
    if (script.below(3) == 0)
      edit_tensor(source.tensors, script);
    else
      edit_pair(source.pairs, script);
  }
  test::GgufWriter writer;
  for (const Pair& pair : source.pairs) writer.raw(pair.key, pair.type, pair.value);
  for (const test::GgufTensor& tensor : source.tensors) writer.tensor(tensor);
  const fuzz::fs::path path = folder.write("model.gguf", writer.bytes());
  fuzz::inspect_and_step(path);
  fuzz::expect_only_errors([&] { fuzz::use_tokenizer(*open_tokenizer(open_gguf(path))); });
  return 0;
}
