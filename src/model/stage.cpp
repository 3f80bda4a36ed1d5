#include "model/stage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace sluice::impl {
namespace {

// Of a stage with hardly any memory.
constexpr double kMostWeight = 1e4;
constexpr double kMostBytes = 0x1p62;  // that are weighed

class Division {
 public:
  // weights: what a byte of each stage counts, at least 1.
  Division(const DividedBytes& bytes, std::vector<double> weights)
      : n_(static_cast<int>(weights.size())), weights_(std::move(weights)) {
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
  int64_t weighed(int stage, LayerRange range) const {
    const double weight = weights_[static_cast<size_t>(stage)];
    return std::llround(std::min(weight * static_cast<double>(bytes(stage, range)), kMostBytes));
  }

  // The smallest that the largest stage can be.
  int64_t limit() const {
    int64_t low = 0, high = 0;
    for (int stage = 0; stage < n_; ++stage) high = std::max(high, weighed(stage, {0, n_layers_}));
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
          const int64_t size = weighed(stage, {begin, end});
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
      if (weighed(stage, {begin, end}) > limit) return false;
      while (end < n_layers_ && weighed(stage, {begin, end + 1}) <= limit) ++end;
    }
    return end == n_layers_;
  }

  int n_;
  std::vector<double> weights_;  // (n)
  int64_t n_layers_ = 0, first_ = 0, last_ = 0;
  std::vector<int64_t> sums_;  // (n_layers + 1) of the layers before each
};

}  // namespace

std::vector<LayerRange> divide_layers(const DividedBytes& bytes, int n) {
  SLUICE_CHECK(n > 0 && !bytes.layers.empty());
  const Division division(bytes, std::vector<double>(static_cast<size_t>(n), 1.0));
  return division.within(division.limit());
}

std::vector<LayerRange> divide_by_memory(const DividedBytes& bytes,
                                         std::span<const int64_t> memory) {
  const int n = static_cast<int>(memory.size());
  const Division equal(bytes, std::vector<double>(memory.size(), 1.0));
  // The first stage that does not fit; n: all do.
  const auto too_small = [&](const std::vector<LayerRange>& ranges) {
    int stage = 0;
    while (stage < n && equal.bytes(stage, ranges[static_cast<size_t>(stage)]) <=
                            memory[static_cast<size_t>(stage)])
      ++stage;
    return stage;
  };
  std::vector<LayerRange> ranges = divide_layers(bytes, n);
  if (too_small(ranges) == n) return ranges;
  const auto most = static_cast<double>(*std::max_element(memory.begin(), memory.end()));
  std::vector<double> weights;
  for (const int64_t own : memory)
    weights.push_back(std::clamp(most / std::max(1.0, static_cast<double>(own)), 1.0, kMostWeight));
  const Division division(bytes, std::move(weights));
  ranges = division.within(division.limit());
  const int stage = too_small(ranges);
  if (stage == n) return ranges;
  const auto gib = [](int64_t n_bytes) { return static_cast<double>(n_bytes) * 0x1p-30; };
  throw Error(fmt::format("the weights do not fit these ranks: rank {} would have {:.2f} GiB and "
                          "has memory for {:.2f}",
                          stage, gib(equal.bytes(stage, ranges[static_cast<size_t>(stage)])),
                          gib(memory[static_cast<size_t>(stage)])),
              "more ranks on other machines, or smaller weights: --weights q4_k");
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
