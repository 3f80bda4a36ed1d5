// Running means of clusters, some columns of them, as one thread finds them.

#pragma once

#include "backend/cuda/keys_columns.cuh"
#include "backend/cuda/keys_rows.cuh"

namespace sluice::cuda {

// Whether a head takes means, or what the representative has.
__device__ inline bool is_average(const HeadView& head, bool values) {
  const auto far = static_cast<FarKey>(head.far);
  return values ? far != FarKey::kOwn : far == FarKey::kCentroid;
}

// The mean of a cluster in the cache.
template <int kN, bool kBF16>
__device__ void load_before(const MeansArgs& args, const Columns& at, int32_t cluster,
                            float (&to)[kN]) {
  const int64_t d = args.head_dim, row = at.head * args.before.capacity + cluster;
  const std::byte* rows = at.values ? args.before.values : args.before.keys;
  load<kN>(ConstRowsView{rows, d, kBF16}, row, at.column, to);
  if (!kBF16) return;
  float rest[kN];
  load<kN>(rests_of(args.before, at.values, d), row, at.column, rest);
  for (int i = 0; i < kN; ++i) to[i] += rest[i];
}

// What the members of a cluster before this pass add up to.
template <int kN, bool kBF16>
__device__ void load_sum_before(const MeansArgs& args, const Columns& at, int32_t cluster,
                                float (&to)[kN]) {
  load_before<kN, kBF16>(args, at, cluster, to);
  const auto count = static_cast<float>(args.counts_before[cluster]);
  for (int i = 0; i < kN; ++i) to[i] *= count;
}

// kN columns of the members of segments, one place after another.
template <int kN, bool kBF16>
struct ColumnMeans {
  const MeansArgs& args;
  Columns at;
  bool average;
  float sum[kN] = {};       // or, where nothing is averaged, what the representative has
  int32_t first_token = 0;  // of the cluster

  __device__ ColumnMeans(const MeansArgs& of, const Columns& columns, const HeadView& head)
      : args(of), at(columns), average(is_average(head, columns.values)) {}

  // Whether the row of a member is needed.
  __device__ bool reads(int32_t marked) const { return average || (marked & kFirst) != 0; }

  // The member at place p, kN of its row, if that is needed, in x.
  __device__ void take(int64_t p, int32_t marked, int32_t count, const float (&x)[kN]) {
    const int64_t d = args.head_dim, token = marked / kMarks;
    if ((marked & kBegins) != 0) begin(p, marked, x);
    if (average)
      for (int c = 0; c < kN; ++c) sum[c] += x[c];
    const bool last = (marked & kLast) != 0;
    const bool alone = (marked & (kFirst | kOwnFirst)) == (kFirst | kOwnFirst);
    if ((marked & kSeen) == 0 || (alone && !last)) return;
    const RowsView to{at.values ? args.values : args.keys, d, kBF16};
    const int64_t row = at.head * args.members.n;
    const float share = average ? 1 / static_cast<float>(count) : 1.0f;
    float mean[kN];
    for (int c = 0; c < kN; ++c) mean[c] = sum[c] * share;
    store<kN>(to, row + token, at.column, mean);
    if (!last || !kBF16) return;
    for (int c = 0; c < kN; ++c) mean[c] -= __bfloat162float(__float2bfloat16_rn(mean[c]));
    if ((marked & kOld) != 0)
      store<kN>(RowsView{at.values ? args.values_rest : args.keys_rest, d, true}, row + token,
                at.column, mean);
    else if ((marked & kOwnFirst) != 0 && !alone)
      store<kN>(to, row + first_token, at.column, mean);
  }

 private:
  // A segment.
  __device__ void begin(int64_t p, int32_t marked, const float (&x)[kN]) {
    const MembersView& members = args.members;
    const bool first = (marked & kFirst) != 0;
    if (first) first_token = marked / kMarks;
    for (int c = 0; c < kN; ++c) sum[c] = 0;
    if (!average && first && (marked & kOwnFirst) != 0) {
      for (int c = 0; c < kN; ++c) sum[c] = x[c];
    } else if (average && first && (marked & kOld) == 0) {
      return;
    } else {  // rarely: something is to be looked up
      const int32_t cluster = members.clusters[p];
      if (!first) first_token = static_cast<int32_t>(members.first_new[cluster] - members.first);
      if (!average && (marked & kOld) != 0) return load_before<kN, kBF16>(args, at, cluster, sum);
      if (!average) return load_token(members.own[cluster]);
      if (first) return load_sum_before<kN, kBF16>(args, at, cluster, sum);
      const int64_t n_columns = 2 * args.n_kv_heads * args.head_dim;
      const float* before = args.sums + (p / kSegment - 1) * n_columns + at.flat;
      for (int c = 0; c < kN; ++c) sum[c] = before[c];
    }
  }
  __device__ void load_token(int32_t token) {
    const HeadRows rows = token_rows(args.tokens, at.values, at.head, args.head_dim, kBF16 ? 2 : 4);
    load<kN>(ConstRowsView{rows.token(args.members.first + token), 0, kBF16}, 0, at.column, sum);
  }
};

}  // namespace sluice::cuda
