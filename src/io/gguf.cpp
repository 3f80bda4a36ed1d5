// Format: docs/gguf.md of the ggml project.

#include "io/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include "core/error.h"
#include "core/quote.h"
#include "io/broken_file.h"
#include "io/gguf_reader.h"
#include "io/mapped_file.h"

namespace sluice::impl {
namespace {

constexpr int64_t kDefaultAlignment = 32;
constexpr int64_t kMaxAlignment = int64_t{1} << 20;
constexpr size_t kMinPairBytes = 8 + 4 + 1;            // key length, type, smallest value
constexpr size_t kMinTensorBytes = 8 + 4 + 8 + 4 + 8;  // name length, rank, one axis, type, offset

struct GgufType {
  uint32_t id;
  std::string_view name;
  std::optional<DType> dtype;
};

// Tensor types as the file numbers them. The gaps were types once and are no longer written.
constexpr GgufType kGgufTypes[] = {
    {0, "F32", DType::kF32},
    {1, "F16", DType::kF16},
    {2, "Q4_0", DType::kQ4_0},
    {3, "Q4_1", DType::kQ4_1},
    {6, "Q5_0", DType::kQ5_0},
    {7, "Q5_1", DType::kQ5_1},
    {8, "Q8_0", DType::kQ8_0},
    {9, "Q8_1", {}},
    {10, "Q2_K", {}},
    {11, "Q3_K", {}},
    {12, "Q4_K", DType::kQ4_K},
    {13, "Q5_K", DType::kQ5_K},
    {14, "Q6_K", DType::kQ6_K},
    {15, "Q8_K", {}},
    {16, "IQ2_XXS", {}},
    {17, "IQ2_XS", {}},
    {18, "IQ3_XXS", {}},
    {19, "IQ1_S", {}},
    {20, "IQ4_NL", {}},
    {21, "IQ3_S", {}},
    {22, "IQ2_S", {}},
    {23, "IQ4_XS", {}},
    {24, "I8", {}},
    {25, "I16", {}},
    {26, "I32", {}},
    {27, "I64", {}},
    {28, "F64", {}},
    {29, "IQ1_M", {}},
    {30, "BF16", DType::kBF16},
    {34, "TQ1_0", {}},
    {35, "TQ2_0", {}},
    {39, "MXFP4", {}},
};

DType readable_type(uint32_t id, const std::string& where) {
  const auto* type = std::find_if(std::begin(kGgufTypes), std::end(kGgufTypes),
                                  [id](const GgufType& t) { return t.id == id; });
  if (type == std::end(kGgufTypes))
    throw Error(where + " is of unknown type " + std::to_string(id), kBrokenHint);
  if (!type->dtype)
    throw Error(where + " is of type " + std::string(type->name) + ", which is not supported",
                "re-quantise to Q4_K, Q5_K, Q6_K or Q8_0, or convert to F16");
  return *type->dtype;
}

struct Counts {
  uint64_t tensors;
  uint64_t pairs;
};

Counts read_start(GgufReader& reader, std::span<const std::byte> file, const std::string& label) {
  const std::string_view all(reinterpret_cast<const char*>(file.data()), file.size());
  if (all.starts_with("version https://git-lfs"))
    throw Error(label + ": is a Git LFS pointer, not the weights", "run `git lfs pull`");
  if (!all.starts_with("GGUF"))
    throw Error(label + ": does not begin with the bytes `GGUF`", "is this a GGUF file?");
  reader.read<uint32_t>("the magic");
  const auto version = reader.read<uint32_t>("the version");
  if (version == 1)
    throw Error(label + ": is of GGUF version 1, only 2 and 3 are supported",
                "convert the model again with a current converter");
  if (version != 0 && (version & 0xffff) == 0)
    throw Error(label + ": is a big-endian GGUF file, which is not supported",
                "convert the model again without the big-endian option");
  if (version != 2 && version != 3)
    throw Error(
        label + ": is of GGUF version " + std::to_string(version) + ", only 2 and 3 are supported",
        "is the file newer than this program?");
  const auto n_tensors = reader.read<uint64_t>("the tensor count");
  const auto n_pairs = reader.read<uint64_t>("the metadata count");
  if (n_tensors > reader.remaining() / kMinTensorBytes)
    throw Error(label + ": claims " + std::to_string(n_tensors) + " tensors, more than its " +
                    std::to_string(file.size()) + " bytes can hold",
                kBrokenHint);
  if (n_pairs > reader.remaining() / kMinPairBytes)
    throw Error(label + ": claims " + std::to_string(n_pairs) + " metadata keys, more than its " +
                    std::to_string(file.size()) + " bytes can hold",
                kBrokenHint);
  return {n_tensors, n_pairs};
}

void read_metadata(GgufReader& reader, uint64_t count, const std::string& label, GgufFile& file) {
  for (uint64_t i = 0; i < count; ++i) {
    std::string key = reader.read_string("metadata key " + std::to_string(i));
    const std::string what = "key " + quote(key);
    if (file.metadata.contains(key))
      throw Error(label + ": " + what + " is there twice", kBrokenHint);
    reader.use_memory(160, what);  // its node of the map
    GgufValue value = reader.read_value(what);
    file.metadata.emplace(std::move(key), std::move(value));
  }
}

int64_t data_alignment(const GgufFile& file, const std::string& label) {
  const int64_t alignment = file.find_int("general.alignment").value_or(kDefaultAlignment);
  if (alignment < 1 || alignment > kMaxAlignment || !std::has_single_bit(uint64_t(alignment)))
    throw Error(label + ": key `general.alignment` is " + std::to_string(alignment) +
                    ", expected a power of two up to " + std::to_string(kMaxAlignment),
                kBrokenHint);
  return alignment;
}

struct TensorInfo {
  StoredTensor tensor;  // bytes not set yet
  int64_t offset = 0;   // from the start of the data
  int64_t size = 0;     // bytes
};

TensorInfo read_tensor_info(GgufReader& reader, const std::string& label, uint64_t index) {
  TensorInfo info;
  info.tensor.name = reader.read_string("the name of tensor " + std::to_string(index));
  const std::string what = "tensor " + quote(info.tensor.name);
  const std::string where = label + ": " + what;
  const auto rank = reader.read<uint32_t>(what);
  if (rank < 1 || rank > Shape::kMaxRank)
    throw Error(where + " has " + std::to_string(rank) + " axes, expected 1 to " +
                    std::to_string(Shape::kMaxRank),
                kBrokenHint);
  std::array<int64_t, Shape::kMaxRank> extents{};  // slowest first; the file has the fastest first
  for (uint32_t axis = 0; axis < rank; ++axis) {
    const auto extent = reader.read<uint64_t>(what);
    if (extent == 0 || extent > uint64_t{std::numeric_limits<int64_t>::max()})
      throw Error(where + " has an axis of " + std::to_string(extent) + " elements", kBrokenHint);
    extents[rank - 1 - axis] = static_cast<int64_t>(extent);
  }
  info.tensor.dtype = readable_type(reader.read<uint32_t>(what), where);
  const auto offset = reader.read<uint64_t>(what);
  if (offset > uint64_t{std::numeric_limits<int64_t>::max()})
    throw Error(where + " is at offset " + std::to_string(offset) + ", past the end of the file",
                kBrokenHint);
  info.offset = static_cast<int64_t>(offset);

  const BlockSize block = block_size(info.tensor.dtype);
  const int64_t row = extents[rank - 1];
  if (row % block.elements != 0)
    throw Error(where + " has rows of " + std::to_string(row) + " elements, not a multiple of " +
                    std::to_string(block.elements) + ", the block of " +
                    std::string(dtype_name(info.tensor.dtype)),
                "re-quantise with a type whose blocks divide the rows, e.g. Q8_0");
  try {
    info.tensor.shape = Shape(std::span<const int64_t>(extents.data(), rank));
    info.size = checked_mul(info.tensor.shape.numel() / block.elements, block.bytes);
  } catch (const Error& error) {
    throw Error(where + ": shape is too large: " + error.what(), kBrokenHint);
  }
  return info;
}

// Sets the bytes of each tensor; `data` begins where offsets count from.
void place_tensors(std::vector<TensorInfo>& infos, std::span<const std::byte> data,
                   int64_t alignment, const std::string& label) {
  std::sort(infos.begin(), infos.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return a.offset < b.offset; });
  const auto data_size = static_cast<int64_t>(data.size());
  const TensorInfo* before = nullptr;
  for (TensorInfo& info : infos) {
    const std::string where = label + ": tensor " + quote(info.tensor.name);
    if (info.offset % alignment != 0)
      throw Error(where + " is at offset " + std::to_string(info.offset) +
                      ", not a multiple of the alignment " + std::to_string(alignment),
                  kBrokenHint);
    if (info.offset > data_size || info.size > data_size - info.offset)
      throw Error(where + " needs " + std::to_string(info.size) + " bytes at offset " +
                      std::to_string(info.offset) + ", the file holds " +
                      std::to_string(data_size) + " bytes of data",
                  kBrokenHint);
    if (before != nullptr && info.offset < before->offset + before->size)
      throw Error(label + ": tensors " + quote(before->tensor.name) + " and " +
                      quote(info.tensor.name) + " overlap",
                  kBrokenHint);
    info.tensor.bytes =
        data.subspan(static_cast<size_t>(info.offset), static_cast<size_t>(info.size));
    before = &info;
  }
}

void read_tensors(GgufReader& reader, uint64_t count, std::span<const std::byte> bytes,
                  const std::string& label, GgufFile& file) {
  const int64_t alignment = data_alignment(file, label);
  std::vector<TensorInfo> infos;
  std::set<std::string, std::less<>> names;
  for (uint64_t i = 0; i < count; ++i) {
    infos.push_back(read_tensor_info(reader, label, i));
    const std::string& name = infos.back().tensor.name;
    // In the list, which is there twice while it grows, in the set and in the store.
    reader.use_memory(640 + 3 * long_text_bytes(name.size()), "tensor " + quote(name));
    if (!names.insert(name).second)
      throw Error(label + ": tensor " + quote(name) + " is there twice", kBrokenHint);
  }
  if (infos.empty()) return;

  const auto step = static_cast<size_t>(alignment);
  const size_t start = (reader.position() + step - 1) / step * step;
  if (start > bytes.size())
    throw Error(label + ": ends before the data of its tensors", kBrokenHint);
  place_tensors(infos, bytes.subspan(start), alignment, label);
  for (TensorInfo& info : infos) file.weights.add(std::move(info.tensor));
}

std::string_view value_kind(const GgufValue& value) {
  constexpr std::string_view kKinds[] = {
      "an integer",         "a float",          "a bool",          "a string",
      "a list of integers", "a list of floats", "a list of bools", "a list of strings"};
  return kKinds[value.index()];
}

[[noreturn]] void refuse_kind(const GgufFile& file, std::string_view key, const GgufValue& value,
                              std::string_view expected) {
  throw Error(path_label(file.path) + ": key " + quote(key) + " is " +
                  std::string(value_kind(value)) + ", expected " + std::string(expected),
              "was the file written by a current converter?");
}

// The value as T: nullptr when absent, Error when of another type.
template <typename T>
const T* find_as(const GgufFile& file, std::string_view key, std::string_view expected) {
  const GgufValue* value = file.find(key);
  if (value == nullptr) return nullptr;
  const T* typed = std::get_if<T>(value);
  if (typed == nullptr) refuse_kind(file, key, *value, expected);
  return typed;
}

[[noreturn]] void fail_absent(const GgufFile& file, std::string_view key,
                              std::string_view expected) {
  throw Error(
      path_label(file.path) + ": no key " + quote(key) + ", expected " + std::string(expected),
      "is this the GGUF file of a language model?");
}

}  // namespace

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto found = metadata.find(key);
  return found == metadata.end() ? nullptr : &found->second;
}

std::optional<int64_t> GgufFile::find_int(std::string_view key) const {
  const auto* value = find_as<int64_t>(*this, key, "an integer");
  return value == nullptr ? std::nullopt : std::optional(*value);
}

std::optional<double> GgufFile::find_float(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* integer = std::get_if<int64_t>(value)) return static_cast<double>(*integer);
  const double number = *find_as<double>(*this, key, "a float");
  if (!std::isfinite(number))
    throw Error(path_label(path) + ": key " + quote(key) + " is not a finite number",
                "was the file written by a current converter?");
  return number;
}

std::optional<bool> GgufFile::find_bool(std::string_view key) const {
  const auto* value = find_as<bool>(*this, key, "a bool");
  return value == nullptr ? std::nullopt : std::optional(*value);
}

int64_t GgufFile::require_int(std::string_view key) const {
  if (const auto value = find_int(key)) return *value;
  fail_absent(*this, key, "an integer");
}

double GgufFile::require_float(std::string_view key) const {
  if (const auto value = find_float(key)) return *value;
  fail_absent(*this, key, "a float");
}

const std::string& GgufFile::require_string(std::string_view key) const {
  if (const auto* value = find_as<std::string>(*this, key, "a string")) return *value;
  fail_absent(*this, key, "a string");
}

const std::vector<std::string>* GgufFile::find_strings(std::string_view key) const {
  return find_as<std::vector<std::string>>(*this, key, "a list of strings");
}

const std::vector<int64_t>* GgufFile::find_ints(std::string_view key) const {
  return find_as<std::vector<int64_t>>(*this, key, "a list of integers");
}

const std::vector<double>* GgufFile::find_floats(std::string_view key) const {
  return find_as<std::vector<double>>(*this, key, "a list of floats");
}

GgufFile parse_gguf(std::span<const std::byte> bytes, const std::filesystem::path& path) {
  const std::string label = path_label(path);
  GgufFile file;
  file.path = path;
  GgufReader reader(bytes, label);
  const Counts counts = read_start(reader, bytes, label);
  read_metadata(reader, counts.pairs, label, file);
  if (const auto parts = file.find_int("split.count"); parts && *parts > 1)
    throw Error(label + ": is one of " + std::to_string(*parts) +
                    " parts of a split model, which is not supported",
                "merge the parts into one file first");
  read_tensors(reader, counts.tensors, bytes, label, file);
  file.memory_left = reader.memory_left();
  return file;
}

GgufFile open_gguf(const std::filesystem::path& path) {
  auto mapped = MappedFile::open(path);
  GgufFile file = parse_gguf(mapped->bytes(), path);
  file.weights.keep_alive(std::move(mapped));
  return file;
}

}  // namespace sluice::impl
