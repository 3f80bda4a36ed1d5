// Attention on queries, keys and values of one's own, without a model: dense, and refined at
// several deltas, with the keys that were read and how far the answers are from dense's.

#include "sluice/attention.h"

#include <cmath>
#include <cstdio>
#include <exception>
#include <random>
#include <vector>

constexpr sluice::AttentionShape kShape{
    .n_heads = 8, .n_kv_heads = 2, .head_dim = 64, .capacity = 4096};

// Rows that stay near one of 32 directions for some tokens, then near another, as texts do.
std::vector<float> random_rows(int64_t n_heads, unsigned seed) {
  std::mt19937 random(seed), of_topics(1);
  std::normal_distribution<float> normal;
  std::vector<float> topics(32 * kShape.head_dim), rows;
  for (float& x : topics) x = normal(of_topics);
  for (int64_t token = 0, topic = 0; token < kShape.capacity; ++token) {
    if (of_topics() % 16 == 0) topic = of_topics() % 32;  // the same in q, k and v
    for (int64_t i = 0; i < n_heads * kShape.head_dim; ++i)
      rows.push_back(topics[topic * kShape.head_dim + i % kShape.head_dim] + normal(random) / 2);
  }
  return rows;
}

int main() {
  try {
    const std::vector<float> q = random_rows(kShape.n_heads, 2);
    const std::vector<float> k = random_rows(kShape.n_kv_heads, 3);
    const std::vector<float> v = random_rows(kShape.n_kv_heads, 4);
    std::vector<float> exact(q.size()), refined(q.size());
    sluice::Attention(kShape).append(q, k, v, exact);
    for (const double delta : {0.0, 0.001, 0.01, 0.1}) {
      sluice::AttentionOptions options;
      options.mode = sluice::AttentionMode::kRefine;
      options.delta = delta;
      sluice::Attention attention(kShape, options);
      attention.append(q, k, v, refined);
      double error = 0, total = 0;
      for (size_t i = 0; i < q.size(); ++i) {
        error += std::pow(refined[i] - exact[i], 2);
        total += std::pow(exact[i], 2);
      }
      std::printf("delta %-5g keys read %5.1f%%, relative error %.2g\n", delta,
                  100 * attention.keys_read(), std::sqrt(error / total));
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "attention: %s\n", error.what());
    return 1;
  }
}
