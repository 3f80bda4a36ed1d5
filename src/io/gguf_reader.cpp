#include "io/gguf_reader.h"

#include <bit>
#include <limits>

#include "core/error.h"
#include "core/quote.h"
#include "io/broken_file.h"

namespace sluice::impl {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little endian");

// Metadata and tensor list; real ones take a few MiB, nearly all of it the vocabulary.
constexpr size_t kMaxGgufHeaderBytes = size_t{256} << 20;

// Over all arrays of a file. A vocabulary of 256k tokens with scores, types and merges has about
// 1.5M elements.
constexpr size_t kMaxArrayElements = size_t{1} << 24;

// Value types as the file numbers them.
enum ValueType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

// The fewest bytes a value takes in the file; 0 for types that do not exist.
size_t min_bytes(uint32_t type) {
  switch (type) {
    case kU8:
    case kI8:
    case kBool:
      return 1;
    case kU16:
    case kI16:
      return 2;
    case kU32:
    case kI32:
    case kF32:
      return 4;
    case kString:
    case kU64:
    case kI64:
    case kF64:
      return 8;
    case kArray:
      return 12;
    default:
      return 0;
  }
}

}  // namespace

const std::byte* GgufReader::take(size_t count, const std::string& what) {
  if (count > remaining())
    throw Error(label_ + ": ends inside " + what + ": " + std::to_string(count) +
                    " bytes wanted at byte " + std::to_string(position_) + ", " +
                    std::to_string(remaining()) + " left",
                kBrokenHint);
  if (count > kMaxGgufHeaderBytes - position_)
    throw Error(label_ + ": " + what + " reaches past the first " +
                    std::to_string(kMaxGgufHeaderBytes) + " bytes, the limit for metadata",
                "is this a language model's checkpoint?");
  const std::byte* start = bytes_.data() + position_;
  position_ += count;
  return start;
}

void GgufReader::use_memory(size_t bytes, const std::string& what) {
  if (bytes > memory_left_)
    throw Error(label_ + ": " + what + " brings the metadata to more memory than " +
                    std::to_string(memory_for(bytes_.size())) + " bytes",
                "is this a language model's checkpoint?");
  memory_left_ -= bytes;
}

std::string GgufReader::read_string(const std::string& what) {
  const auto length = read<uint64_t>(what);
  const std::byte* text = take(length, what);
  use_memory(long_text_bytes(length), what);
  return {reinterpret_cast<const char*>(text), length};
}

template <typename T>
int64_t GgufReader::read_integer(const std::string& what) {
  const T value = read<T>(what);
  if constexpr (std::is_same_v<T, uint64_t>)
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      throw Error(label_ + ": " + what + " is " + std::to_string(value) + ", over 2^63 - 1",
                  kBrokenHint);
  return static_cast<int64_t>(value);
}

bool GgufReader::read_bool(const std::string& what) {
  const auto value = read<uint8_t>(what);
  if (value > 1)
    throw Error(label_ + ": " + what + " is " + std::to_string(value) + ", expected a bool, 0 or 1",
                kBrokenHint);
  return value == 1;
}

GgufValue GgufReader::read_value(const std::string& what) {
  const auto type = read<uint32_t>(what);
  return type == kArray ? read_array(what) : read_scalar(type, what);
}

GgufValue GgufReader::read_scalar(uint32_t type, const std::string& what) {
  switch (type) {
    case kU8:
      return read_integer<uint8_t>(what);
    case kI8:
      return read_integer<int8_t>(what);
    case kU16:
      return read_integer<uint16_t>(what);
    case kI16:
      return read_integer<int16_t>(what);
    case kU32:
      return read_integer<uint32_t>(what);
    case kI32:
      return read_integer<int32_t>(what);
    case kU64:
      return read_integer<uint64_t>(what);
    case kI64:
      return read_integer<int64_t>(what);
    case kF32:
      return static_cast<double>(read<float>(what));
    case kF64:
      return read<double>(what);
    case kBool:
      return read_bool(what);
    case kString:
      return read_string(what);
    default:
      throw Error(label_ + ": " + what + " is of unknown value type " + std::to_string(type),
                  kBrokenHint);
  }
}

template <typename T, typename F>
std::vector<T> GgufReader::read_elements(size_t count, F&& read_one) {
  std::vector<T> elements;
  elements.reserve(count);  // read_array has checked it against the bytes left
  for (size_t i = 0; i < count; ++i) elements.push_back(read_one());
  return elements;
}

GgufValue GgufReader::read_array(const std::string& what) {
  const auto type = read<uint32_t>(what);
  const auto count = read<uint64_t>(what);
  if (type == kArray)
    throw Error(label_ + ": " + what + " is an array of arrays, which is not supported",
                "remove the key with a GGUF editor");
  const size_t each = min_bytes(type);
  if (each == 0)
    throw Error(label_ + ": " + what + " is an array of unknown value type " + std::to_string(type),
                kBrokenHint);
  if (count > remaining() / each)
    throw Error(label_ + ": " + what + " claims " + std::to_string(count) +
                    " elements, more than the " + std::to_string(remaining()) +
                    " bytes left can hold",
                kBrokenHint);
  array_elements_ += count;
  if (array_elements_ > kMaxArrayElements)
    throw Error(label_ + ": " + what + " brings the metadata to " +
                    std::to_string(array_elements_) + " array elements, more than " +
                    std::to_string(kMaxArrayElements),
                "is this a language model's checkpoint?");

  use_memory(count * (type == kString ? sizeof(std::string) : sizeof(int64_t)), what);

  const auto ints = [&](auto zero) -> GgufValue {
    using T = decltype(zero);
    return read_elements<int64_t>(count, [&] { return read_integer<T>(what); });
  };
  switch (type) {
    case kU8:
      return ints(uint8_t{});
    case kI8:
      return ints(int8_t{});
    case kU16:
      return ints(uint16_t{});
    case kI16:
      return ints(int16_t{});
    case kU32:
      return ints(uint32_t{});
    case kI32:
      return ints(int32_t{});
    case kU64:
      return ints(uint64_t{});
    case kI64:
      return ints(int64_t{});
    case kF32:
      return read_elements<double>(count, [&] { return static_cast<double>(read<float>(what)); });
    case kF64:
      return read_elements<double>(count, [&] { return read<double>(what); });
    case kBool:
      return read_elements<bool>(count, [&] { return read_bool(what); });
    default:
      return read_elements<std::string>(count, [&] { return read_string(what); });
  }
}

}  // namespace sluice::impl
