// Energies are summed in buckets of magnitude, and only the bucket in which the budget ends is
// sorted. Sums in another order than the definition's differ by round-off: where the budget ends
// within that of a sum, the row is sorted whole and summed as defined.

#include "backend/cpu/subspace/grade.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

namespace sluice::impl::cpu::subspace {
namespace {

// Without its sign a float's bits rise with its magnitude. The upper 11 of 31, the exponent and
// three more, choose the bucket.
constexpr int kBucketShift = 20;
constexpr size_t kBuckets = size_t{1} << (31 - kBucketShift);

uint32_t magnitude(float x) { return std::bit_cast<uint32_t>(x) & 0x7fffffffu; }
double energy(uint32_t bits) {
  const double x = std::bit_cast<float>(bits);
  return x * x;
}

// What is left out: elements of smaller magnitude, and those of this one up to this index.
struct Cut {
  uint32_t bits;
  int64_t index;
};
constexpr Cut kZerosOnly = {0, INT64_MAX};

// A magnitude above its index: sorting orders by both, as the definition does.
uint64_t key(uint32_t bits, size_t index) { return uint64_t{bits} << 32 | index; }
Cut cut_at(uint64_t key) {
  return {static_cast<uint32_t>(key >> 32), static_cast<int64_t>(key & 0xffffffffu)};
}

class Grader {
 public:
  explicit Grader(double epsilon) : epsilon_(epsilon) {}

  // bits: magnitudes of a row.
  Cut cut(const std::vector<uint32_t>& bits) {
    fill_buckets(bits);
    const double total = std::accumulate(energies_.begin(), energies_.end(), 0.0);
    const double budget = epsilon_ * epsilon_ * total;
    if (!std::isfinite(total) || budget == 0) return kZerosOnly;
    double sum = 0;
    size_t bucket = 0;
    for (; bucket < kBuckets && sum + energies_[bucket] <= budget; ++bucket)
      sum += energies_[bucket];
    keys_.clear();
    for (size_t i = 0; i < bits.size(); ++i)
      if (bits[i] >> kBucketShift == bucket) keys_.push_back(key(bits[i], i));
    std::sort(keys_.begin(), keys_.end());
    // Two orders of one sum differ by less than this part of it. The budget is such a sum too.
    const double error = static_cast<double>(bits.size() + kBuckets) * 0x1p-52;
    const double low = budget * (1 - 2 * error), high = budget * (1 + 2 * error);
    Cut result = {static_cast<uint32_t>(bucket << kBucketShift), -1};
    if (sum > low) return cut_as_defined(bits);
    for (const uint64_t k : keys_) {
      sum += energy(cut_at(k).bits);
      if (sum > high) return result;
      if (sum > low) break;
      result = cut_at(k);
    }
    return cut_as_defined(bits);
  }

 private:
  void fill_buckets(const std::vector<uint32_t>& bits) {
    energies_.fill(0);
    for (const uint32_t b : bits) energies_[b >> kBucketShift] += energy(b);
  }

  Cut cut_as_defined(const std::vector<uint32_t>& bits) {
    double total = 0;
    for (const uint32_t b : bits) total += energy(b);
    const double budget = epsilon_ * epsilon_ * total;
    keys_.clear();
    for (size_t i = 0; i < bits.size(); ++i) keys_.push_back(key(bits[i], i));
    std::sort(keys_.begin(), keys_.end());
    Cut result = kZerosOnly;
    double sum = 0;
    for (const uint64_t k : keys_) {
      sum += energy(cut_at(k).bits);
      if (sum > budget) break;
      result = cut_at(k);
    }
    return result;
  }

  double epsilon_;
  std::array<double, kBuckets> energies_;
  std::vector<uint64_t> keys_;
};

template <typename T>
int32_t write_row(const T* x, const std::vector<uint32_t>& bits, Cut cut, T* out) {
  int32_t kept = 0;
  for (size_t i = 0; i < bits.size(); ++i) {
    const bool keep =
        bits[i] > cut.bits || (bits[i] == cut.bits && static_cast<int64_t>(i) > cut.index);
    out[i] = keep ? x[i] : T{};
    kept += keep ? 1 : 0;
  }
  return kept;
}

template <typename T>
void grade(const GradeArgs& args, int64_t begin, int64_t end) {
  std::vector<uint32_t> bits(static_cast<size_t>(args.x.row_elements()));
  Grader grader(args.epsilon);
  for (int64_t row = begin; row < end; ++row) {
    const T* x = args.x.row<T>(row);
    for (size_t i = 0; i < bits.size(); ++i) bits[i] = magnitude(to_float(x[i]));
    const Cut cut = args.epsilon > 0 ? grader.cut(bits) : kZerosOnly;
    args.kept[static_cast<size_t>(row)] = write_row(x, bits, cut, args.graded.row<T>(row));
  }
}

}  // namespace

void grade_rows(const GradeArgs& args, int64_t begin, int64_t end) {
  if (args.x.dtype() == DType::kBF16)
    grade<BFloat16>(args, begin, end);
  else
    grade<float>(args, begin, end);
}

}  // namespace sluice::impl::cpu::subspace
