#include "model/stage.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace sluice::impl {
namespace {

class Division {
 public:
  Division(const DividedBytes& bytes, int n) : n_(n) {
    n_layers_ = std::ssize(bytes.layers);
    sums_.resize(bytes.layers.size() + 1);
    std::partial_sum(bytes.layers.begin(), bytes.layers.end(), sums_.begin() + 1);
    first_ = bytes.first;
    last_ = bytes.last;
  }

  int64_t bytes(int stage, LayerRange range) const {
    return sums_[static_cast<size_t>(range.end)] - sums_[static_cast<size_t>(range.begin)] +
           (stage == 0 ? first_ : 0) + (stage == n_ - 1 ? last_ : 0);
  }

  // The smallest that the largest stage can be.
  int64_t limit() const {
    int64_t low = 0, high = sums_.back() + first_ + last_;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (fits(middle))
        high = middle;
      else
        low = middle + 1;
    }
    return low;
  }

  // Of the divisions within the limit, that of the least sum of squares.
  std::vector<LayerRange> within(int64_t limit) const {
    const auto places = static_cast<size_t>(n_layers_ + 1);
    constexpr double kNone = std::numeric_limits<double>::infinity();
    std::vector<double> least(places, kNone), next(places);  // by where the stages so far end
    std::vector<std::vector<int64_t>> begins(static_cast<size_t>(n_),
                                             std::vector<int64_t>(places, 0));
    least[0] = 0;
    for (int stage = 0; stage < n_; ++stage) {
      std::fill(next.begin(), next.end(), kNone);
      for (int64_t end = 0; end <= n_layers_; ++end)
        for (int64_t begin = end; begin >= 0; --begin) {
          const int64_t size = bytes(stage, {begin, end});
          if (size > limit) break;
          const double cost = least[static_cast<size_t>(begin)] +
                              static_cast<double>(size) * static_cast<double>(size);
          if (cost >= next[static_cast<size_t>(end)]) continue;
          next[static_cast<size_t>(end)] = cost;
          begins[static_cast<size_t>(stage)][static_cast<size_t>(end)] = begin;
        }
      std::swap(least, next);
    }
    std::vector<LayerRange> ranges(static_cast<size_t>(n_));
    int64_t end = n_layers_;
    for (int stage = n_ - 1; stage >= 0; --stage) {
      const auto at = static_cast<size_t>(stage);
      ranges[at] = {begins[at][static_cast<size_t>(end)], end};
      end = ranges[at].begin;
    }
    return ranges;
  }

 private:
  bool fits(int64_t limit) const {
    int64_t end = 0;
    for (int stage = 0; stage < n_; ++stage) {
      const int64_t begin = end;
      if (bytes(stage, {begin, end}) > limit) return false;
      while (end < n_layers_ && bytes(stage, {begin, end + 1}) <= limit) ++end;
    }
    return end == n_layers_;
  }

  int n_;
  int64_t n_layers_ = 0, first_ = 0, last_ = 0;
  std::vector<int64_t> sums_;  // (n_layers + 1) of the layers before each
};

}  // namespace

std::vector<LayerRange> divide_layers(const DividedBytes& bytes, int n) {
  SLUICE_CHECK(n > 0 && !bytes.layers.empty());
  const Division division(bytes, n);
  return division.within(division.limit());
}

void Stage::receive(Backend& backend, const Tensor& residual, std::span<KvCache* const> caches) {
  SLUICE_CHECK(residual.contiguous() && !first());
  const int from = ranks_.rank() - 1;
  const auto n = static_cast<size_t>(residual.shape().numel());
  if (residual.device() == Device::kCpu) {
    ranks_.receive(std::as_writable_bytes(std::span(residual.data<float>(), n)), from);
  } else {
    rows_.resize(n);
    ranks_.receive(std::as_writable_bytes(std::span(rows_)), from);
    backend.upload(ConstTensor(rows_.data(), DType::kF32, residual.shape()), residual);
  }
  for (KvCache* cache : caches) {
    if (!cache->inherits_sets()) continue;
    int64_t size = 0;
    ranks_.receive(std::as_writable_bytes(std::span(&size, 1)), from);
    std::vector<std::byte> sets(static_cast<size_t>(size));
    ranks_.receive(sets, from);
    cache->take_over(sets);
  }
}

void Stage::send(Backend& backend, const ConstTensor& residual, std::span<KvCache* const> caches) {
  SLUICE_CHECK(residual.contiguous() && !last());
  const int to = ranks_.rank() + 1;
  const auto n = static_cast<size_t>(residual.shape().numel());
  std::span<const float> rows;
  if (residual.device() == Device::kCpu) {
    rows = {residual.data<float>(), n};
  } else {
    rows_.resize(n);
    backend.download(residual, Tensor(rows_.data(), DType::kF32, residual.shape()));
    rows = rows_;
  }
  ranks_.send(std::as_bytes(rows), to);
  for (KvCache* cache : caches) {
    if (!cache->hands_down_sets()) continue;
    const std::vector<std::byte> sets = cache->hand_down();
    const auto size = static_cast<int64_t>(sets.size());
    ranks_.send(std::as_bytes(std::span(&size, 1)), to);
    ranks_.send(sets, to);
  }
}

// Without waiting for a stage that is itself about to send rows here: with several groups of
// sequences in flight the others are behind the last in their passes.
void share_chosen(Communicator& ranks, std::span<int32_t> tokens) {
  const int from = ranks.size() - 1;
  if (ranks.rank() < from) return ranks.receive(std::as_writable_bytes(tokens), from);
  for (int to = 0; to < from; ++to) ranks.post(std::as_bytes(tokens), to);
}

}  // namespace sluice::impl
