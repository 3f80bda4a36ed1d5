// Attention on queries, keys and values of one's own, without a model: dense, and refined at
// several deltas, with the keys that were read and how far the answers are from dense's.

#include "sluice/attention.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <random>
#include <vector>

constexpr sluice::AttentionShape kShape{
    .n_heads = 8, .n_kv_heads = 2, .head_dim = 64, .capacity = 4096};
constexpr int kTopics = 32;  // directions that keys and queries lie near

std::vector<float> random_rows(int64_t n_heads, float spread, unsigned seed) {
  std::mt19937 random(seed), topics(1);
  std::normal_distribution<float> normal;
  std::vector<float> centres(kTopics * kShape.head_dim);
  for (float& x : centres) x = 2 * normal(topics);
  std::vector<float> rows;
  for (int64_t row = 0; row < kShape.capacity * n_heads; ++row) {
    const int64_t topic = static_cast<int64_t>(random() % kTopics);
    for (int64_t i = 0; i < kShape.head_dim; ++i)
      rows.push_back(centres[topic * kShape.head_dim + i] + spread * normal(random));
  }
  return rows;
}

int main() {
  try {
    const std::vector<float> q = random_rows(kShape.n_heads, 1, 2);
    const std::vector<float> k = random_rows(kShape.n_kv_heads, 0.5f, 3);
    const std::vector<float> v = random_rows(kShape.n_kv_heads, 1, 4);
    std::vector<float> exact(q.size()), refined(q.size());
    sluice::Attention(kShape).append(q, k, v, exact);
    for (const double delta : {0.0, 0.001, 0.01, 0.1}) {
      sluice::AttentionOptions options;
      options.mode = sluice::AttentionMode::kRefine;
      options.delta = delta;
      sluice::Attention attention(kShape, options);
      attention.append(q, k, v, refined);
      float worst = 0;
      for (size_t i = 0; i < q.size(); ++i)
        worst = std::max(worst, std::abs(refined[i] - exact[i]));
      std::printf("delta %-5g keys read %5.1f%%, largest difference %.2g\n", delta,
                  100 * attention.keys_read(), worst);
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "attention: %s\n", error.what());
    return 1;
  }
}
