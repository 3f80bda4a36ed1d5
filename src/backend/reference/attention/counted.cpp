// Keys that stand for tokens, and the softmax of one query head over them.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/reference/attention/attention.h"
#include "backend/reference/common/values.h"

namespace sluice::impl::reference::attention {

std::vector<CountedKey> counted_keys(const KeptRows& keys, const KeptRows& values, int64_t kv_head,
                                     int64_t head_dim) {
  std::vector<CountedKey> all;
  for (int64_t row = 0; row < keys.size(); ++row) {
    CountedKey& one = all.emplace_back(CountedKey{1, {}, {}});
    for (int64_t i = kv_head * head_dim; i < (kv_head + 1) * head_dim; ++i) {
      one.key.push_back(load(keys.view(), row, i));
      one.value.push_back(load(values.view(), row, i));
    }
  }
  return all;
}

double attend_head(const AttendHeadArgs& args) {
  const int64_t head_dim = args.queries.shape()[2], first = args.head * head_dim;
  SLUICE_CHECK(!args.keys.empty());
  std::vector<double> query, weight;
  for (int64_t i = 0; i < head_dim; ++i) query.push_back(load(args.queries, args.row, first + i));
  for (const CountedKey* j : args.keys)
    weight.push_back(std::inner_product(query.begin(), query.end(), j->key.begin(), 0.0) *
                         args.scale +
                     std::log(j->count));
  const double largest = *std::max_element(weight.begin(), weight.end());
  double total = 0;
  for (double& w : weight) total += w = std::exp(w - largest);
  std::vector<double> sum(query.size());
  for (size_t j = 0; j < weight.size(); ++j)
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += weight[j] * args.keys[j]->value[i];
  for (int64_t i = 0; i < head_dim; ++i)
    store(args.out, args.row, first + i, static_cast<float>(sum[static_cast<size_t>(i)] / total));
  return largest + std::log(total);
}

}  // namespace sluice::impl::reference::attention
