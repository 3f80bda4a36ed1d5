#include "core/shape.h"

#include "core/error.h"

namespace sluice::impl {

int64_t checked_mul(int64_t a, int64_t b) {
  int64_t product = 0;
  if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product))
    throw Error("size " + std::to_string(a) + " x " + std::to_string(b) + " is out of range");
  return product;
}

int64_t checked_add(int64_t a, int64_t b) {
  int64_t sum = 0;
  if (a < 0 || b < 0 || __builtin_add_overflow(a, b, &sum))
    throw Error("size " + std::to_string(a) + " + " + std::to_string(b) + " is out of range");
  return sum;
}

Shape::Shape(std::initializer_list<int64_t> extents)
    : Shape(std::span<const int64_t>(extents.begin(), extents.size())) {}

Shape::Shape(std::span<const int64_t> extents) {
  if (extents.size() > kMaxRank)
    throw Error("a tensor of " + std::to_string(extents.size()) + " axes is not supported");
  int64_t count = 1;
  for (const int64_t extent : extents) {
    count = checked_mul(count, extent);
    extents_[static_cast<size_t>(rank_++)] = extent;
  }
}

int64_t Shape::numel() const {
  int64_t count = 1;
  for (int axis = 0; axis < rank_; ++axis) count *= (*this)[axis];
  return count;
}

std::string Shape::str() const {
  std::string text = "(";
  for (int axis = 0; axis < rank_; ++axis)
    text += (axis ? ", " : "") + std::to_string((*this)[axis]);
  return text + ")";
}

}  // namespace sluice::impl
