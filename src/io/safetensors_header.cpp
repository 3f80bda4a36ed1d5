// Format: https://huggingface.co/docs/safetensors, "Format".

#include "io/safetensors_header.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "core/error.h"
#include "core/quote.h"
#include "io/json_text.h"

namespace sluice::impl {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr size_t kMaxAxes = 32;                    // of tensors that are skipped
constexpr const char* kBrokenHint = "is the download complete? fetch or convert the file again";

struct RawEntry {
  std::string name;
  std::string type;
  std::vector<int64_t> shape;
  std::vector<int64_t> offsets;  // begin, end: bytes after the header
  bool has_type = false;
  bool has_shape = false;
  bool has_offsets = false;
};

// Takes the parser's events straight into entries: no tree of the whole header is built, so memory
// stays in proportion to the header, and repeated names are seen.
class HeaderEvents {
 public:
  using Json = nlohmann::json;
  HeaderEvents(const std::string& label, SafetensorsMetadata* metadata)
      : label_(label), metadata_(metadata) {}

  std::vector<RawEntry> take() { return std::move(entries_); }

  bool null() {
    if (place_ != Place::kTop || !is_metadata_) unexpected("null");
    return true;
  }
  bool boolean(bool) { unexpected("a boolean"); }
  bool number_integer(Json::number_integer_t value) { return integer(value); }
  bool number_unsigned(Json::number_unsigned_t value) {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      unexpected("the number " + std::to_string(value));
    return integer(static_cast<int64_t>(value));
  }
  bool number_float(Json::number_float_t, const std::string& text) {
    unexpected("the number " + text.substr(0, 40));
  }
  bool string(std::string& value) {
    if (place_ == Place::kMetadata) {
      if (metadata_ != nullptr && !metadata_->emplace(metadata_name_, value).second)
        throw Error(label_ + ": metadata " + quote(metadata_name_) + " is there twice",
                    kBrokenHint);
      return true;
    }
    if (place_ != Place::kTensor || field_ != Field::kType) unexpected("a string");
    entries_.back().type = value;
    entries_.back().has_type = true;
    return true;
  }
  bool binary(Json::binary_t&) { unexpected("binary data"); }

  bool start_object(size_t) {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
    } else if (place_ == Place::kTop) {
      place_ = is_metadata_ ? Place::kMetadata : Place::kTensor;
      if (!is_metadata_) entries_.emplace_back().name = name_;
    } else {
      unexpected("an object");
    }
    return true;
  }
  bool end_object() {
    if (place_ == Place::kTensor) {
      const RawEntry& entry = entries_.back();
      if (!entry.has_type) missing("dtype");
      if (!entry.has_shape) missing("shape");
      if (!entry.has_offsets || entry.offsets.size() != 2) missing("data_offsets of two numbers");
    }
    place_ = place_ == Place::kTop ? Place::kStart : Place::kTop;
    return true;
  }
  bool start_array(size_t) {
    if (place_ != Place::kTensor || field_ == Field::kType) unexpected("an array");
    place_ = Place::kNumbers;
    (field_ == Field::kShape ? entries_.back().has_shape : entries_.back().has_offsets) = true;
    return true;
  }
  bool end_array() {
    place_ = Place::kTensor;
    return true;
  }
  bool key(std::string& value) {
    if (place_ == Place::kTop) {
      if (!names_.insert(value).second)
        throw Error(label_ + ": tensor " + quote(value) + " is there twice", kBrokenHint);
      name_ = value;
      is_metadata_ = value == "__metadata__";
    } else if (place_ == Place::kMetadata) {
      metadata_name_ = value;
    } else if (place_ == Place::kTensor) {
      const RawEntry& entry = entries_.back();
      if (value == "dtype" && !entry.has_type)
        field_ = Field::kType;
      else if (value == "shape" && !entry.has_shape)
        field_ = Field::kShape;
      else if (value == "data_offsets" && !entry.has_offsets)
        field_ = Field::kOffsets;
      else
        throw Error(label_ + ": tensor " + quote(name_) + ": unexpected field " + quote(value),
                    kBrokenHint);
    }
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) {
    throw json_error(label_ + ": header", error);
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kNumbers };
  enum class Field { kType, kShape, kOffsets };

  bool integer(int64_t value) {
    if (place_ != Place::kNumbers || value < 0) unexpected("the number " + std::to_string(value));
    RawEntry& entry = entries_.back();
    if (field_ == Field::kShape && entry.shape.size() == kMaxAxes)
      throw Error(label_ + ": tensor " + quote(name_) + " has more than " +
                      std::to_string(kMaxAxes) + " axes",
                  kBrokenHint);
    if (field_ == Field::kOffsets && entry.offsets.size() == 2)
      missing("data_offsets of two numbers");
    (field_ == Field::kShape ? entry.shape : entry.offsets).push_back(value);
    return true;
  }

  [[noreturn]] void missing(const char* what) const {
    throw Error(label_ + ": tensor " + quote(name_) + " lacks " + what, kBrokenHint);
  }
  [[noreturn]] void unexpected(const std::string& what) const {
    std::string where = "header";
    std::string expected = "an object";
    switch (place_) {
      case Place::kStart:
        break;
      case Place::kTop:
        where = quote(name_);
        break;
      case Place::kMetadata:
        where = quote(name_);
        expected = "strings only";
        break;
      case Place::kTensor:
      case Place::kNumbers: {
        constexpr const char* kNames[] = {"dtype", "shape", "data_offsets"};
        where = "tensor " + quote(name_) + ": " + kNames[static_cast<size_t>(field_)];
        expected = field_ == Field::kType ? "a string" : "integers of 0 or more, below 2^63";
        break;
      }
    }
    throw Error(label_ + ": " + where + " holds " + what + ", expected " + expected, kBrokenHint);
  }

  const std::string& label_;
  SafetensorsMetadata* metadata_;
  std::vector<RawEntry> entries_;
  std::set<std::string, std::less<>> names_;
  Place place_ = Place::kStart;
  Field field_ = Field::kType;
  std::string name_, metadata_name_;
  bool is_metadata_ = false;
};

struct FileType {
  std::string_view name;
  int bits;
  std::optional<DType> dtype;
};

constexpr FileType kFileTypes[] = {
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

SafetensorsEntry check_entry(const RawEntry& raw, std::span<const std::byte> data,
                             const std::string& label) {
  const std::string where = label + ": tensor " + quote(raw.name);
  const auto* type = std::find_if(std::begin(kFileTypes), std::end(kFileTypes),
                                  [&](const FileType& t) { return t.name == raw.type; });
  if (type == std::end(kFileTypes))
    throw Error(where + ": unknown dtype " + quote(raw.type),
                "convert the weights to F32, F16 or BF16");
  const int64_t begin = raw.offsets[0];
  const int64_t end = raw.offsets[1];
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

  SafetensorsEntry entry{raw.name, raw.type, type->dtype, Shape(), {}};
  if (type->dtype) entry.shape = Shape(std::span<const int64_t>(raw.shape));
  entry.bytes = data.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  return entry;
}

}  // namespace

std::vector<SafetensorsEntry> read_safetensors_header(std::span<const std::byte> file,
                                                      const std::string& label,
                                                      SafetensorsMetadata* metadata) {
  const std::string_view text = header_text(file, label);
  HeaderEvents events(label, metadata);
  // With throwing handlers the result is always true.
  nlohmann::json::sax_parse(text.begin(), text.end(), &events);
  std::vector<RawEntry> raw = events.take();
  const auto data = file.subspan(sizeof(uint64_t) + text.size());

  std::vector<SafetensorsEntry> entries;
  entries.reserve(raw.size());
  std::sort(raw.begin(), raw.end(),
            [](const RawEntry& a, const RawEntry& b) { return a.offsets < b.offsets; });
  int64_t covered = 0;
  for (const RawEntry& next : raw) {
    entries.push_back(check_entry(next, data, label));
    if (next.offsets[0] < covered)
      throw Error(label + ": tensors " + quote(entries[entries.size() - 2].name) + " and " +
                      quote(next.name) + " overlap",
                  kBrokenHint);
    if (next.offsets[0] > covered)
      throw Error(label + ": no tensor covers bytes " + std::to_string(covered) + " to " +
                      std::to_string(next.offsets[0]),
                  kBrokenHint);
    covered = next.offsets[1];
  }
  if (covered != static_cast<int64_t>(data.size()))
    throw Error(label + ": no tensor covers bytes " + std::to_string(covered) + " to " +
                    std::to_string(data.size()),
                kBrokenHint);
  return entries;
}

}  // namespace sluice::impl
