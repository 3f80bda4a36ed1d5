// Format: https://huggingface.co/docs/safetensors, "Format".

#include "io/safetensors_header.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/quote.h"
#include "io/broken_file.h"
#include "io/json/parse.h"
#include "io/json/value.h"

namespace sluice::impl {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
// Nine to a matrix: a header of 400,000 tensors.
constexpr size_t kMaxValues = size_t{1} << 22;
constexpr size_t kMaxAxes = 32;  // of tensors that are skipped

struct RawEntry {
  std::string name;
  std::string type;
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;  // bytes after the header
};

std::vector<int64_t> read_shape(const JsonValue& json) {
  const size_t n_axes = json.array().size();
  if (n_axes > kMaxAxes)
    json.refuse("has " + std::to_string(n_axes) + " axes, more than " + std::to_string(kMaxAxes));
  std::vector<int64_t> shape;
  for (size_t i = 0; i < n_axes; ++i)
    shape.push_back(json.element(i).integer(0, JsonValue::kMaxInt));
  return shape;
}

RawEntry read_entry(const std::string& name, const JsonValue& json) {
  json.expect_keys({"dtype", "shape", "data_offsets"});
  RawEntry entry{
      .name = name, .type = json.at("dtype").string(), .shape = read_shape(json.at("shape"))};
  const JsonValue offsets = json.at("data_offsets");
  if (offsets.array().size() != 2) offsets.refuse("does not have two elements");
  entry.begin = offsets.element(0).integer(0, JsonValue::kMaxInt);
  entry.end = offsets.element(1).integer(0, JsonValue::kMaxInt);
  return entry;
}

void read_metadata(const JsonValue& json, SafetensorsMetadata& metadata) {
  if (json.raw().is_null()) return;
  for (const auto& [name, value] : json.object())
    metadata.emplace(name, JsonValue(value, json.source()).string());
}

// What a tree may take for a file of so many bytes: what is made of it takes as much again.
constexpr size_t header_memory(size_t file_bytes) { return file_bytes + 40'000'000; }

std::vector<RawEntry> read_entries(std::string_view text, const std::string& label,
                                   size_t file_bytes, SafetensorsMetadata& metadata) {
  const JsonLimits limits = {
      .bytes = kMaxHeaderBytes, .values = kMaxValues, .memory = header_memory(file_bytes)};
  const nlohmann::json header = parse_json(text, label, limits);
  const JsonSource source{header, label, kBrokenHint};
  std::vector<RawEntry> entries;
  for (const auto& [name, value] : JsonValue(source).object()) {
    if (name == "__metadata__")
      read_metadata(JsonValue(value, source), metadata);
    else
      entries.push_back(read_entry(name, JsonValue(value, source)));
  }
  return entries;
}

struct SafetensorsType {
  std::string_view name;
  int bits;
  std::optional<DType> dtype;
};

constexpr SafetensorsType kSafetensorsTypes[] = {
    {"F32", 32, DType::kF32},
    {"F16", 16, DType::kF16},
    {"BF16", 16, DType::kBF16},
    {"F64", 64, {}},
    {"I64", 64, {}},
    {"I32", 32, {}},
    {"I16", 16, {}},
    {"I8", 8, {}},
    {"U64", 64, {}},
    {"U32", 32, {}},
    {"U16", 16, {}},
    {"U8", 8, {}},
    {"BOOL", 8, {}},
    {"F8_E4M3", 8, {}},
    {"F8_E5M2", 8, {}},
    {"F8_E8M0", 8, {}},
    {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},
    {"F4", 4, {}},
    {"C64", 64, {}},
};

std::string_view header_text(std::span<const std::byte> file, const std::string& label) {
  const std::string_view all(reinterpret_cast<const char*>(file.data()), file.size());
  if (all.starts_with("version https://git-lfs"))
    throw Error(label + ": is a Git LFS pointer, not the weights", "run `git lfs pull`");
  if (all.starts_with("GGUF"))
    throw Error(label + ": is a GGUF file, expected safetensors", "give it the extension .gguf");
  if (file.size() < sizeof(uint64_t))
    throw Error(label + ": is " + std::to_string(file.size()) +
                    " bytes long, too short for a safetensors file",
                kBrokenHint);
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  if (length > kMaxHeaderBytes)
    throw Error(label + ": header length " + std::to_string(length) + " is over the limit of " +
                    std::to_string(kMaxHeaderBytes) + " bytes",
                "is this a safetensors file?");
  if (length > file.size() - sizeof(uint64_t))
    throw Error(label + ": header length " + std::to_string(length) + " is more than the " +
                    std::to_string(file.size() - sizeof(uint64_t)) + " bytes that follow",
                kBrokenHint);
  const std::string_view text = all.substr(sizeof(uint64_t), length);
  if (!text.starts_with('{'))
    throw Error(label + ": header does not begin with `{`", "is this a safetensors file?");
  return text;
}

// Also bounds every partial product of non-zero extents, on which views compute strides.
int64_t checked_count(const std::vector<int64_t>& shape) {
  int64_t nonzero = 1;
  bool empty = false;
  for (const int64_t extent : shape) {
    if (extent == 0)
      empty = true;
    else
      nonzero = checked_mul(nonzero, extent);
  }
  return empty ? 0 : nonzero;
}

// Names may be long: they are moved from entry to entry, and lie in memory once.
SafetensorsEntry check_entry(RawEntry& raw, std::span<const std::byte> data,
                             const std::string& label) {
  const std::string where = label + ": tensor " + quote(raw.name);
  const auto* type = std::find_if(std::begin(kSafetensorsTypes), std::end(kSafetensorsTypes),
                                  [&](const SafetensorsType& t) { return t.name == raw.type; });
  if (type == std::end(kSafetensorsTypes))
    throw Error(where + ": unknown dtype " + quote(raw.type),
                "convert the weights to F32, F16 or BF16");
  const auto [begin, end] = std::pair(raw.begin, raw.end);
  const auto size = static_cast<int64_t>(data.size());
  const std::string range = "bytes " + std::to_string(begin) + " to " + std::to_string(end);
  if (begin > end) throw Error(where + ": " + range + " run backwards", kBrokenHint);
  if (end > size)
    throw Error(where + ": " + range + " are out of range, the file holds " + std::to_string(size) +
                    " bytes of data",
                kBrokenHint);
  if (type->dtype && raw.shape.size() > Shape::kMaxRank)
    throw Error(where + " has " + std::to_string(raw.shape.size()) + " axes, at most " +
                    std::to_string(Shape::kMaxRank) + " are supported",
                "is this a language model's checkpoint?");
  int64_t bits = 0;
  try {
    bits = checked_mul(checked_count(raw.shape), type->bits);
  } catch (const Error& error) {
    throw Error(where + ": shape is too large: " + error.what(), kBrokenHint);
  }
  if (bits % 8 != 0 || bits / 8 != end - begin)
    throw Error(where + ": " + range + " do not match its shape, which takes " +
                    std::to_string(bits / 8) + " bytes as " + raw.type,
                kBrokenHint);

  SafetensorsEntry entry{std::move(raw.name), std::move(raw.type), type->dtype, Shape(), {}};
  if (type->dtype) entry.shape = Shape(std::span<const int64_t>(raw.shape));
  entry.bytes = data.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  return entry;
}

}  // namespace

std::vector<SafetensorsEntry> read_safetensors_header(std::span<const std::byte> file,
                                                      const std::string& label,
                                                      SafetensorsMetadata* metadata) {
  const std::string_view text = header_text(file, label);
  SafetensorsMetadata own_metadata;
  std::vector<RawEntry> raw = read_entries(text, label + ": header", file.size(),
                                           metadata == nullptr ? own_metadata : *metadata);
  const auto data = file.subspan(sizeof(uint64_t) + text.size());

  std::vector<SafetensorsEntry> entries;
  entries.reserve(raw.size());
  std::sort(raw.begin(), raw.end(), [](const RawEntry& a, const RawEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  int64_t covered = 0;
  for (RawEntry& next : raw) {
    entries.push_back(check_entry(next, data, label));
    if (next.begin < covered)
      throw Error(label + ": tensors " + quote(entries[entries.size() - 2].name) + " and " +
                      quote(entries.back().name) + " overlap",
                  kBrokenHint);
    if (next.begin > covered)
      throw Error(label + ": no tensor covers bytes " + std::to_string(covered) + " to " +
                      std::to_string(next.begin),
                  kBrokenHint);
    covered = next.end;
  }
  if (covered != static_cast<int64_t>(data.size()))
    throw Error(label + ": no tensor covers bytes " + std::to_string(covered) + " to " +
                    std::to_string(data.size()),
                kBrokenHint);
  return entries;
}

}  // namespace sluice::impl
