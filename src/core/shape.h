// The extents of a tensor, slowest axis first, with arithmetic that cannot overflow unseen.

#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace sluice::impl {

// a * b; throws Error when the product does not fit. Both must be >= 0.
int64_t checked_mul(int64_t a, int64_t b);
int64_t checked_add(int64_t a, int64_t b);

class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;
  Shape(std::initializer_list<int64_t> extents);
  // Throws Error for more than kMaxRank axes, a negative extent or an element count over int64.
  explicit Shape(std::span<const int64_t> extents);

  int rank() const { return rank_; }
  int64_t operator[](int axis) const { return extents_[static_cast<size_t>(axis)]; }
  int64_t numel() const;    // 1 for rank 0
  std::string str() const;  // "(2, 3)"

  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<int64_t, kMaxRank> extents_{};
  int rank_ = 0;
};

}  // namespace sluice::impl
