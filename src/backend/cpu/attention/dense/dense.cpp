// Exact attention, docs/algorithm.md section 3, mode `dense`.
//
// Key blocks start at multiples of their size from position 0, so a query's arithmetic does not
// depend on how a prompt is cut into chunks of kMinPackedQueries or more.

#include "backend/cpu/attention/dense/dense.h"

#include <algorithm>
#include <vector>

#include "backend/cpu/attention/common/group.h"
#include "backend/cpu/attention/common/packed.h"
#include "core/threads.h"

namespace sluice::impl::cpu::dense {
namespace {

template <typename T>
void attend_tiles(const AttendDenseArgs& args) {
  const Shape& cache = args.cache.keys.shape();
  const int64_t n_keys = args.first_position + args.n_tokens;
  const attention::TileShape shape(args.queries.dtype(), cache[3]);
  const auto rows_of = [&](int64_t source) {
    const int64_t offset = source * cache[2] * cache[3];
    return attention::HeadRows<T>{args.cache.keys.data<T>() + offset,
                                  args.cache.values.data<T>() + offset};
  };
  const auto visit = [&](attention::QueryTile& tile, int64_t first, int64_t n,
                         attention::Panels panels) {
    const int64_t position = args.first_position + first;
    const int64_t end = args.causal ? position + n : n_keys;
    const int64_t begin = args.window > 0 ? std::max<int64_t>(0, position + 1 - args.window) : 0;
    for (int64_t block = begin / shape.block_keys; block * shape.block_keys < end; ++block) {
      const int64_t first_key = block * shape.block_keys;
      tile.visit(panels.from(shape, block),
                 {.n_keys = shape.block_keys,
                  .begin = args.window > 0 ? position + 1 - args.window - first_key : 0,
                  .end = (args.causal ? position + 1 : n_keys) - first_key,
                  .begin_step = args.window > 0 ? 1 : 0,
                  .end_step = args.causal ? 1 : 0});
    }
  };
  attention::attend_packed<T>({.queries = args.queries,
                               .n_batch = cache[0],
                               .n_kv_heads = cache[1],
                               .n_keys = n_keys,
                               .scale = args.scale,
                               .cap = args.unscaled_cap(),
                               .out = args.out},
                              shape, rows_of, visit);
}

// Decoding, and prompts of a few tokens: the query heads of a key head in one pass over its keys.
// Keys are divided in stretches that start at multiples of kStretch, so that a few heads occupy
// many threads; sums do not depend on the number of threads.
constexpr int64_t kStretch = 512;

// Keys [begin, end) of one row of queries, and the stretches that have some of them.
struct KeyRange {
  int64_t begin, end;
  int64_t first_stretch() const { return begin / kStretch; }
  int64_t n_stretches() const { return (end + kStretch - 1) / kStretch - first_stretch(); }
};

template <typename T>
class Rows {
 public:
  explicit Rows(const AttendDenseArgs& args) : args_(args) {
    for (int64_t row = 0; row < args.n_tokens; ++row)
      n_stretches_ = std::max(n_stretches_, range_of(row).n_stretches());
  }

  void attend() {
    const int64_t n_groups = args_.queries.rows() * n_kv_heads_;
    parts_.resize(n_stretches_ > 1 ? static_cast<size_t>(n_groups * n_stretches_ * part_size_) : 0);
    parallel_each(n_groups * n_stretches_, [&](int64_t index) { attend_stretch(index); });
    for (int64_t item = 0; item < n_groups && n_stretches_ > 1; ++item) add_stretches(item);
  }

 private:
  KeyRange range_of(int64_t row) const {
    const int64_t position = args_.first_position + row % args_.n_tokens;
    return {args_.window > 0 ? std::max<int64_t>(0, position + 1 - args_.window) : 0,
            args_.causal ? position + 1 : args_.first_position + args_.n_tokens};
  }
  // item: a row of queries and a key head.
  void load(attention::QueryGroup<T>& queries, int64_t item) const {
    queries.load(args_.queries.row<T>(item / n_kv_heads_) + first_of(item), group_, head_dim_,
                 args_.scale, args_.unscaled_cap());
  }
  void store(attention::QueryGroup<T>& queries, int64_t item) const {
    queries.store(args_.out.row<T>(item / n_kv_heads_) + first_of(item));
  }
  int64_t first_of(int64_t item) const { return item % n_kv_heads_ * group_ * head_dim_; }

  void attend_stretch(int64_t index) {
    thread_local attention::QueryGroup<T> queries;
    const int64_t item = index / n_stretches_, row = item / n_kv_heads_;
    const KeyRange keys = range_of(row);
    const int64_t stretch = keys.first_stretch() + index % n_stretches_;
    const int64_t begin = std::max(keys.begin, stretch * kStretch);
    const int64_t end = std::max(begin, std::min(keys.end, (stretch + 1) * kStretch));
    const int64_t head = row / args_.n_tokens * n_kv_heads_ + item % n_kv_heads_;
    const int64_t offset = (head * capacity_ + std::min(begin, keys.end)) * head_dim_;
    load(queries, item);
    queries.visit(args_.cache.keys.data<T>() + offset, args_.cache.values.data<T>() + offset,
                  end - begin);
    if (n_stretches_ == 1)
      store(queries, item);
    else
      queries.save(parts_.data() + index * part_size_);
  }

  void add_stretches(int64_t item) {
    load(whole_, item);
    for (int64_t i = 0; i < range_of(item / n_kv_heads_).n_stretches(); ++i)
      whole_.add(parts_.data() + (item * n_stretches_ + i) * part_size_);
    store(whole_, item);
  }

  const AttendDenseArgs& args_;
  const int64_t n_kv_heads_ = args_.cache.keys.shape()[1], capacity_ = args_.cache.keys.shape()[2];
  const int64_t head_dim_ = args_.cache.keys.shape()[3];
  const int64_t group_ = args_.queries.shape()[1] / n_kv_heads_;
  const int64_t part_size_ = group_ * (2 + head_dim_);
  int64_t n_stretches_ = 1;   // of the row that has most
  std::vector<float> parts_;  // (rows, n_kv_heads, n_stretches, part_size)
  attention::QueryGroup<T> whole_;
};

template <typename T>
void attend(const AttendDenseArgs& args) {
  if (args.n_tokens < attention::kMinPackedQueries)
    Rows<T>(args).attend();
  else
    attend_tiles<T>(args);
}

}  // namespace

void attend(const AttendDenseArgs& args) {
  const Shape& cache = args.cache.keys.shape();
  SLUICE_CHECK(args.queries.shape()[2] == cache[3] && args.queries.shape()[1] % cache[1] == 0);
  SLUICE_CHECK(args.first_position + args.n_tokens <= cache[2]);
  SLUICE_CHECK(args.queries.rows() == cache[0] * args.n_tokens);
  if (args.queries.dtype() == DType::kBF16)
    attend<BFloat16>(args);
  else
    attend<float>(args);
}

}  // namespace sluice::impl::cpu::dense
