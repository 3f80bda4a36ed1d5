// Exact attention in tiles with an online softmax: nothing of size n_tokens x n_tokens exists.
// docs/algorithm.md section 3, mode `dense`.
//
// Keys and values of a head are packed once into the panels of gemm.h, then blocks of queries
// pass over blocks of keys. Key blocks start at multiples of their size from position 0, so a
// query's arithmetic does not depend on how a prompt is cut into chunks of kMinPackedQueries or
// more.

#include "backend/cpu/attend_dense.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "backend/cpu/gemm.h"
#include "backend/cpu/rows.h"
#include "backend/cpu/score_rows.h"
#include "core/threads.h"

namespace sluice::cpu {
namespace {

// Packed keys and values that exist at one time; heads beyond that wait for the next round.
constexpr int64_t kPackedBytes = int64_t{64} << 20;
// Fewer queries than this go row by row: packing the keys would cost more than it saves.
constexpr int64_t kMinPackedQueries = 8;

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// The sizes every part of one call shares.
struct Plan {
  explicit Plan(const AttendDenseArgs& args)
      : kernel(gemm_kernel(args.queries.dtype())),
        n_heads(args.queries.shape()[1]),
        n_kv_heads(args.cache.keys.shape()[1]),
        capacity(args.cache.keys.shape()[2]),
        head_dim(args.cache.keys.shape()[3]),
        n_keys(args.first_position + args.n_tokens),
        block_keys(round_up(128, kernel.nr)),
        block_queries(8 * kernel.mr),
        n_blocks((n_keys + block_keys - 1) / block_keys),
        padded_dim(round_up(head_dim, kernel.nr)) {}

  int64_t key_elements() const {  // packed keys of one head
    return n_blocks * (block_keys / kernel.nr) * kernel.panel_elements(head_dim);
  }
  int64_t value_elements() const {  // packed values of one head
    return n_blocks * (padded_dim / kernel.nr) * kernel.panel_elements(block_keys);
  }

  const GemmKernel& kernel;
  int64_t n_heads, n_kv_heads, capacity, head_dim, n_keys;
  int64_t block_keys, block_queries, n_blocks, padded_dim;
};

// Packed keys and values of one key/value head.
struct PackedHead {
  std::byte* keys;    // (n_blocks, block_keys / nr) panels of depth head_dim
  std::byte* values;  // (n_blocks, padded_dim / nr) panels of depth block_keys
};

template <typename T>
void pack_block(const Plan& plan, const T* keys, const T* values, int64_t block, PackedHead to) {
  const GemmKernel& kernel = plan.kernel;
  const int64_t size = element_bytes(kernel.b_dtype), hd = plan.head_dim;
  const int64_t begin = block * plan.block_keys;
  const int64_t n_valid = std::min(plan.block_keys, plan.n_keys - begin);
  const int64_t panels = plan.block_keys / kernel.nr;
  for (int64_t p = 0; p < panels; ++p) {
    const int64_t n = std::clamp<int64_t>(n_valid - p * kernel.nr, 0, kernel.nr);
    pack_panel_rows(kernel, keys + (begin + p * kernel.nr) * hd, hd, n, hd,
                    to.keys + (block * panels + p) * kernel.panel_elements(hd) * size);
  }
  const int64_t value_panels = plan.padded_dim / kernel.nr;
  const int64_t depth = kernel.panel_elements(plan.block_keys) * size;
  for (int64_t p = 0; p < value_panels; ++p) {
    std::byte* panel = to.values + (block * value_panels + p) * depth;
    pack_panel_columns(kernel, values + begin * hd + p * kernel.nr, hd,
                       std::min(kernel.nr, hd - p * kernel.nr), n_valid, panel);
    // The rest of the block's depth multiplies weights of zero and must be finite.
    const int64_t used = kernel.padded_k(n_valid) * kernel.nr * size;
    std::memset(panel + used, 0, static_cast<size_t>(depth - used));
  }
}

// Scratch of one thread for one block of queries.
struct Scratch {
  std::vector<std::byte> queries;  // (block_queries, padded head_dim) a_dtype
  std::vector<float> scores;       // (block_queries, block_keys)
  std::vector<std::byte> weights;  // (block_queries, block_keys) a_dtype, when it is not f32
  std::vector<float> sums;         // (block_queries, padded_dim)
  std::vector<SoftmaxState> state;
};

class QueryBlock {
 public:
  QueryBlock(const AttendDenseArgs& args, const Plan& plan, Scratch& scratch)
      : args_(args), plan_(plan), s_(scratch), kernel_(plan.kernel) {
    const auto rows = static_cast<size_t>(plan.block_queries);
    const auto a_bytes = static_cast<size_t>(element_bytes(kernel_.a_dtype));
    q_stride_ = kernel_.padded_k(plan.head_dim) + 16;
    s_.queries.resize(rows * static_cast<size_t>(q_stride_) * a_bytes);
    s_.scores.resize(rows * static_cast<size_t>(score_stride()));
    if (kernel_.a_dtype != DType::kF32) s_.weights.resize(s_.scores.size() * a_bytes);
    s_.state.resize(rows);
  }

  void run(int64_t batch, int64_t head, int64_t first_query, PackedHead packed) {
    const int64_t n = std::min(plan_.block_queries, args_.n_tokens - first_query);
    const int64_t row = batch * args_.n_tokens + first_query;
    const int64_t position = args_.first_position + first_query;
    load_queries(row, head, n);
    s_.sums.assign(static_cast<size_t>(plan_.block_queries * plan_.padded_dim), 0.0f);
    std::fill(s_.state.begin(), s_.state.end(), SoftmaxState{-INFINITY, 0.0f});
    const int64_t end = args_.causal ? position + n : plan_.n_keys;
    const int64_t begin = args_.window > 0 ? std::max<int64_t>(0, position + 1 - args_.window) : 0;
    for (int64_t block = begin / plan_.block_keys; block * plan_.block_keys < end; ++block)
      visit(block, position, n, packed);
    for (int64_t i = 0; i < n; ++i) finish(row + i, head, i);
  }

 private:
  int64_t score_stride() const { return plan_.block_keys + 16; }

  void load_queries(int64_t row, int64_t head, int64_t n) {
    const int64_t hd = plan_.head_dim;
    for (int64_t i = 0; i < n; ++i) {
      if (kernel_.a_dtype == DType::kBF16) {
        auto* to = reinterpret_cast<BFloat16*>(s_.queries.data()) + i * q_stride_;
        std::memcpy(to, args_.queries.row<BFloat16>(row + i) + head * hd,
                    static_cast<size_t>(hd) * sizeof(BFloat16));
        std::fill(to + hd, to + q_stride_, BFloat16{0});
      } else {
        auto* to = reinterpret_cast<float*>(s_.queries.data()) + i * q_stride_;
        if (args_.queries.dtype() == DType::kF32)
          std::memcpy(to, args_.queries.row<float>(row + i) + head * hd,
                      static_cast<size_t>(hd) * sizeof(float));
        else
          widen(args_.queries.row<BFloat16>(row + i) + head * hd, hd, to);
      }
    }
  }

  // C (n x columns) = or += A B over the panels of one block.
  void multiply(const std::byte* a, int64_t a_stride, const std::byte* panels, int64_t k, int64_t n,
                int64_t columns, float* c, int64_t c_stride, bool accumulate) const {
    const int64_t a_bytes = element_bytes(kernel_.a_dtype);
    const int64_t panel_bytes = kernel_.panel_elements(k) * element_bytes(kernel_.b_dtype);
    for (int64_t p = 0; p < columns / kernel_.nr; ++p)
      for (int64_t i = 0; i < n; i += kernel_.mr)
        kernel_.tiles[std::min(kernel_.mr, n - i) - 1](
            {a + i * a_stride * a_bytes, a_stride, panels + p * panel_bytes, kernel_.padded_k(k),
             c + i * c_stride + p * kernel_.nr, c_stride, accumulate});
  }

  void visit(int64_t block, int64_t position, int64_t n, PackedHead packed) {
    const int64_t size = element_bytes(kernel_.b_dtype);
    const int64_t key_block =
        plan_.block_keys / kernel_.nr * kernel_.panel_elements(plan_.head_dim) * size;
    const int64_t value_block =
        plan_.padded_dim / kernel_.nr * kernel_.panel_elements(plan_.block_keys) * size;
    multiply(s_.queries.data(), q_stride_, packed.keys + block * key_block, plan_.head_dim, n,
             plan_.block_keys, s_.scores.data(), score_stride(), false);
    for (int64_t i = 0; i < n; ++i) soften(block * plan_.block_keys, position + i, i);
    const auto* weights = kernel_.a_dtype == DType::kF32
                              ? reinterpret_cast<const std::byte*>(s_.scores.data())
                              : s_.weights.data();
    multiply(weights, score_stride(), packed.values + block * value_block, plan_.block_keys, n,
             plan_.padded_dim, s_.sums.data(), plan_.padded_dim, true);
  }

  // Masks one row of scores, takes it through the softmax and corrects the earlier sums.
  void soften(int64_t first_key, int64_t position, int64_t i) {
    float* scores = s_.scores.data() + i * score_stride();
    const int64_t n_keys = args_.causal ? position + 1 : plan_.n_keys;
    const int64_t end = std::clamp<int64_t>(n_keys - first_key, 0, plan_.block_keys);
    const int64_t begin =
        args_.window > 0
            ? std::clamp<int64_t>(position + 1 - args_.window - first_key, 0, plan_.block_keys)
            : 0;
    std::fill(scores, scores + begin, -INFINITY);
    std::fill(scores + end, scores + plan_.block_keys, -INFINITY);
    const float correction =
        softmax_step(args_.scale, plan_.block_keys, scores, s_.state[static_cast<size_t>(i)]);
    if (correction != 1.0f)
      scale(correction, plan_.padded_dim, s_.sums.data() + i * plan_.padded_dim);
    if (kernel_.a_dtype == DType::kBF16)
      narrow(scores, plan_.block_keys,
             reinterpret_cast<BFloat16*>(s_.weights.data()) + i * score_stride());
  }

  void finish(int64_t row, int64_t head, int64_t i) {
    float* sums = s_.sums.data() + i * plan_.padded_dim;
    scale(1.0f / s_.state[static_cast<size_t>(i)].total, plan_.head_dim, sums);
    if (args_.out.dtype() == DType::kBF16)
      narrow(sums, plan_.head_dim, args_.out.row<BFloat16>(row) + head * plan_.head_dim);
    else
      std::memcpy(args_.out.row<float>(row) + head * plan_.head_dim, sums,
                  static_cast<size_t>(plan_.head_dim) * sizeof(float));
  }

  const AttendDenseArgs& args_;
  const Plan& plan_;
  Scratch& s_;
  const GemmKernel& kernel_;
  int64_t q_stride_;
};

template <typename T>
void attend_packed(const AttendDenseArgs& args) {
  const Plan plan(args);
  const int64_t size = element_bytes(plan.kernel.b_dtype);
  const int64_t head_bytes = (plan.key_elements() + plan.value_elements()) * size;
  const int64_t n_sources = args.cache.keys.shape()[0] * plan.n_kv_heads;
  const int64_t per_round = std::clamp<int64_t>(kPackedBytes / head_bytes, 1, n_sources);
  const int64_t group = plan.n_heads / plan.n_kv_heads;
  const int64_t query_blocks = (args.n_tokens + plan.block_queries - 1) / plan.block_queries;
  const Buffer packed = host_buffer(plan.kernel.b_dtype, {per_round, head_bytes / size});
  const auto head_at = [&](int64_t slot) {
    std::byte* keys = packed.view().bytes() + slot * head_bytes;
    return PackedHead{keys, keys + plan.key_elements() * size};
  };
  for (int64_t first = 0; first < n_sources; first += per_round) {
    const int64_t n = std::min(per_round, n_sources - first);
    parallel_each(n * plan.n_blocks, [&](int64_t i) {
      const int64_t source = first + i / plan.n_blocks;
      const int64_t offset = source * plan.capacity * plan.head_dim;
      pack_block(plan, args.cache.keys.data<T>() + offset, args.cache.values.data<T>() + offset,
                 i % plan.n_blocks, head_at(source - first));
    });
    // Long blocks first: under a causal mask the last queries see the most keys.
    parallel_each(n * group * query_blocks, [&](int64_t i) {
      thread_local Scratch scratch;
      const int64_t block = query_blocks - 1 - i / (n * group);
      const int64_t source = first + i % (n * group) / group;
      const int64_t head = source % plan.n_kv_heads * group + i % group;
      QueryBlock(args, plan, scratch)
          .run(source / plan.n_kv_heads, head, block * plan.block_queries, head_at(source - first));
    });
  }
}

// Decoding, and prompts of a few tokens: row by row, the query heads of a group one after another
// over the same keys.
template <typename T>
void attend_rows(const AttendDenseArgs& args) {
  const Shape& cache = args.cache.keys.shape();
  const int64_t n_kv_heads = cache[1], capacity = cache[2], head_dim = cache[3];
  const int64_t n_heads = args.queries.shape()[1], group = n_heads / n_kv_heads;
  parallel_each(args.queries.rows() * n_kv_heads, [&](int64_t item) {
    thread_local std::vector<float> scores, query, sums;
    const int64_t row = item / n_kv_heads, kv_head = item % n_kv_heads;
    const int64_t position = args.first_position + row % args.n_tokens;
    const int64_t end = args.causal ? position + 1 : args.first_position + args.n_tokens;
    const int64_t begin = args.window > 0 ? std::max<int64_t>(0, position + 1 - args.window) : 0;
    const int64_t offset =
        ((row / args.n_tokens * n_kv_heads + kv_head) * capacity + begin) * head_dim;
    const T* keys = args.cache.keys.data<T>() + offset;
    const T* values = args.cache.values.data<T>() + offset;
    scores.resize(static_cast<size_t>(end - begin));
    query.resize(static_cast<size_t>(head_dim));
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const T* q = args.queries.row<T>(row) + head * head_dim;
      std::transform(q, q + head_dim, query.begin(), [](T x) { return to_float(x); });
      dot_rows(query.data(), keys, head_dim, end - begin, head_dim, scores.data());
      SoftmaxState state{-INFINITY, 0.0f};
      softmax_step(args.scale, end - begin, scores.data(), state);
      sums.assign(static_cast<size_t>(head_dim), 0.0f);
      mix_rows(scores.data(), values, head_dim, end - begin, head_dim, sums.data());
      scale(1.0f / state.total, head_dim, sums.data());
      std::transform(sums.begin(), sums.end(), args.out.row<T>(row) + head * head_dim,
                     [](float x) { return from_float<T>(x); });
    }
  });
}

template <typename T>
void attend(const AttendDenseArgs& args) {
  if (args.n_tokens < kMinPackedQueries)
    attend_rows<T>(args);
  else
    attend_packed<T>(args);
}

}  // namespace

void attend_dense(const AttendDenseArgs& args) {
  const Shape& cache = args.cache.keys.shape();
  SLUICE_CHECK(args.queries.shape()[2] == cache[3] && args.queries.shape()[1] % cache[1] == 0);
  SLUICE_CHECK(args.first_position + args.n_tokens <= cache[2]);
  SLUICE_CHECK(args.queries.rows() == cache[0] * args.n_tokens);
  if (args.queries.dtype() == DType::kBF16)
    attend<BFloat16>(args);
  else
    attend<float>(args);
}

}  // namespace sluice::cpu
