#include "io/weight_store.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "core/error.h"
#include "core/quote.h"
#include "io/gguf_blocks.h"
#include "io/mapped_file.h"

namespace sluice::impl {
namespace {

// How much two names share at both ends; checkpoints of one family differ by a prefix or suffix.
size_t likeness(std::string_view a, std::string_view b) {
  const size_t shorter = std::min(a.size(), b.size());
  size_t front = 0;
  while (front < shorter && a[front] == b[front]) ++front;
  size_t back = 0;
  while (back < shorter && a[a.size() - 1 - back] == b[b.size() - 1 - back]) ++back;
  return std::min(front + back, shorter);
}

}  // namespace

void WeightStore::add(StoredTensor tensor) {
  if (unreadable_.contains(tensor.name) || tensors_.contains(tensor.name))
    throw Error("tensor " + quote(tensor.name) + " is there twice",
                "are the files from one checkpoint?");
  std::string name = tensor.name;
  tensors_.emplace(std::move(name), std::move(tensor));
}

void WeightStore::add_unreadable(std::string name, std::string type) {
  if (unreadable_.contains(name) || tensors_.contains(name))
    throw Error("tensor " + quote(name) + " is there twice", "are the files from one checkpoint?");
  unreadable_.emplace(std::move(name), std::move(type));
}

void WeightStore::keep_alive(std::shared_ptr<const MappedFile> file) {
  files_.push_back(std::move(file));
}

const StoredTensor* WeightStore::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

const StoredTensor& WeightStore::require(std::string_view name) const {
  if (const StoredTensor* tensor = find(name)) return *tensor;

  std::string where;
  if (!files_.empty()) where = path_label(files_.front()->path());
  if (files_.size() > 1) where += " and " + std::to_string(files_.size() - 1) + " more";
  if (!where.empty()) where += ": ";
  if (const auto found = unreadable_.find(name); found != unreadable_.end())
    throw Error(where + "tensor " + quote(name) + " is of type " + found->second +
                    ", which is not supported",
                "convert the weights to F32, F16 or BF16");

  std::vector<std::string_view> nearest;
  for (const auto& [other, tensor] : tensors_) nearest.push_back(other);
  constexpr size_t kShown = 3;
  const auto shown = nearest.begin() + static_cast<ptrdiff_t>(std::min(kShown, nearest.size()));
  std::partial_sort(nearest.begin(), shown, nearest.end(), [name](auto a, auto b) {
    const size_t like_a = likeness(a, name);
    const size_t like_b = likeness(b, name);
    return like_a != like_b ? like_a > like_b : a < b;
  });
  nearest.erase(shown, nearest.end());
  std::string message = where + "no tensor " + quote(name);
  if (nearest.empty()) message += ", nor any other";
  for (size_t i = 0; i < nearest.size(); ++i)
    message += (i == 0 ? "; nearest: " : ", ") + quote(nearest[i]);
  throw Error(message, "is the checkpoint complete, and of the family its config names?");
}

std::string WeightStore::label_of(const StoredTensor& tensor) const {
  for (const auto& file : files_) {
    const std::span<const std::byte> all = file->bytes();
    const bool inside = std::less_equal<>()(all.data(), tensor.bytes.data()) &&
                        std::less<>()(tensor.bytes.data(), all.data() + all.size());
    if (inside || (files_.size() == 1 && tensor.bytes.empty()))
      return path_label(file->path()) + ": " + tensor.name;
  }
  return tensor.name;
}

int64_t WeightStore::total_bytes() const {
  int64_t total = 0;
  for (const auto& [name, tensor] : tensors_) total += static_cast<int64_t>(tensor.bytes.size());
  return total;
}

void WeightStore::release(const StoredTensor& tensor) const {
  for (const auto& file : files_) {
    const std::byte* begin = file->bytes().data();
    if (tensor.bytes.data() >= begin && tensor.bytes.data() < begin + file->bytes().size())
      release_pages(tensor.bytes);
  }
}

void expand(const StoredTensor& tensor, int64_t begin, std::span<float> out) {
  const auto count = static_cast<int64_t>(out.size());
  const BlockSize block = block_size(tensor.dtype);
  SLUICE_CHECK(begin >= 0 && begin <= tensor.shape.numel() &&
               count <= tensor.shape.numel() - begin);
  SLUICE_CHECK(begin % block.elements == 0 && count % block.elements == 0);
  SLUICE_CHECK((begin + count) / block.elements * block.bytes <=
               static_cast<int64_t>(tensor.bytes.size()));
  if (count == 0) return;

  const std::byte* source = tensor.bytes.data() + begin / block.elements * block.bytes;
  switch (tensor.dtype) {
    case DType::kF32:
      std::memcpy(out.data(), source, out.size_bytes());
      return;
    case DType::kF16:
      return expand_f16(source, count, out.data());
    case DType::kBF16:
      return expand_bf16(source, count, out.data());
    case DType::kI32:
    case DType::kI8:
      break;
    default:
      return expand_blocks(tensor.dtype, source, count / block.elements, out.data());
  }
  SLUICE_CHECK(!"a dtype that no parser makes");
}

}  // namespace sluice::impl
